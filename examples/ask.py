"""Asks a server with Python's own library only: recommendations, their reasons, and what an error looks like.

hdccf serve runs/films &
python examples/ask.py http://127.0.0.1:8000
"""

import json
import sys
import urllib.error
import urllib.request
from typing import Any


def ask(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What the server answers; an error raises with the sentence that says what to do."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        problem = json.load(error)
        raise LookupError(f"{problem['title']}: {problem['detail']}") from error


def main() -> None:
    address = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    user = ask(address, "/v1/users?limit=1")["users"][0]["user"]
    print(f"for {user}:")
    for item in ask(address, "/v1/recommend", {"users": [user], "k": 3})["lists"][0]["items"]:
        print(f"  {item['score']:.3f} {item['title']}")

    why = ask(address, "/v1/explain", {"user": user, "k": 1, "top": 2})
    for reason in why["items"][0]["because"]:
        print(f"  {why['items'][0]['title']} because of {reason['title']} ({reason['share']:.0%})")

    found = ask(address, "/v1/items?q=thriller&limit=2")["items"]
    print(f"a new user, who watched {' and '.join(item['title'] for item in found)}:")
    body = {"items": [item["item"] for item in found], "k": 3}
    for item in ask(address, "/v1/recommend", body)["lists"][0]["items"]:
        print(f"  {item['score']:.3f} {item['title']}")

    try:
        ask(address, "/v1/recommend", {"users": ["nobody"]})
    except LookupError as error:
        print(error)


if __name__ == "__main__":
    main()
