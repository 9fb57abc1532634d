"""What people see: text on a terminal. No SQL here, and no torch."""
