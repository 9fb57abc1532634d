"""Know which files a sample is read from: what its dataset names, and what is opened while it is made."""
