"""A run answering over HTTP: `hdccf serve RUN`. Needs the extra `serve` (FastAPI and uvicorn).

settings.py   what can be configured, and the defaults
served.py     the model that answers, and the one that takes its place
work.py       a bounded pool of threads that scores, so that the event loop lives
bodies.py     requests and answers, with their limits
routes.py     the endpoints under /v1
health.py     /healthz, /readyz, /metrics
guards.py     what stands before every endpoint: measuring, the key, the size of a body
problems.py   every error as problem details (RFC 9457)
openapi.py    the description, with examples that work on this server
app.py        all of it together
server.py     a process that listens, reloads and stops
page/         files that are served at /; page_data.py has what they ask for

Nothing here imports the trainer: a server needs no optimizer.
"""
