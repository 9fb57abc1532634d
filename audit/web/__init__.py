"""`audit ui`: a local, read-only web app over a store.

    app        addresses to pages
    pages/     one file per page: a request to plain data
    respond    the data as HTML or as JSON, errors as sentences
    app_state  what all requests share: the store, confined queries, cached answers
    answers    run long queries once, in the background
    derivations   exact values that the store does not hold, recomputed in another process
    replays    replays of one visit, in another process
    warm_process   the process that runs pipelines: torch loaded once, a forked child for each request
    picture_cache   small pictures, decoded and encoded again
    guard      which requests are allowed, and what a browser may do with the response
    server     the socket

Pages hold no SQL and never import torch; only the warm process does.
"""
