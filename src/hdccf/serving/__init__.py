"""A run behind a REST service with a web page: `hdccf serve RUN`. Needs the extra `serve`.

settings.py     what can be configured, and the defaults
service.py      what endpoints share: the model and its replacement, a bounded thread pool
bodies.py       requests and answers, with their limits
routes.py       the endpoints
page_data.py    private endpoints of the page, whose files are in page/
middleware.py   errors as problem details (RFC 9457), metrics, the API key, the size of a body, static files
app.py          the ASGI application, its OpenAPI description, and the process

Nothing here imports the trainer: a server needs no optimizer.
"""
