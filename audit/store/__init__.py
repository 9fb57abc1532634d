"""The store: the only package that imports duckdb and pyarrow.

schema      tables and columns, the public contract
filesystem  the few operations a store needs of the place it lives in
manifest    run.json: a run's row and its committed parts
writer      rows → parts → commit
batch       rows as one buffer, to cross a process boundary without pickling
parts       committed parts as a read-only filesystem that DuckDB sees
views       the SQL of every view
reader      open a store, ask it anything
"""
