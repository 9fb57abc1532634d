"""The store: the only package that imports duckdb, and with `values` the only one that imports pyarrow.

schema      tables and columns, the public contract
manifest    run.json: a run's row and its committed parts
run_row     the row read back, every value of its column's kind
part_file   a table as the Parquet file that a part is
filesystem  what a store needs of the place it lives in; bucket/: the same in an object store
wire        rows of one batch as one buffer, to cross a process boundary
views       the SQL of every view and macro
write/      rows to parts to commit
read/       open a store and query it
sandbox/    run an untrusted query in a confined process
maintain/   verify, compact, amend and remove runs
"""
