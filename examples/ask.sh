#!/bin/sh
# Asks a server with curl. Usage: sh examples/ask.sh http://127.0.0.1:8000 [USER [ITEM]]
# Where the server wants a key: HDCCF_KEY=… sh examples/ask.sh …
set -eu
address=${1:-http://127.0.0.1:8000}
user=${2:-u0001}
item=${3:-f000}

ask() { # ask PATH [BODY]
  path=$1
  shift
  if [ $# -gt 0 ]; then set -- --data "$1"; fi
  if [ -n "${HDCCF_KEY:-}" ]; then set -- "$@" --header "X-API-Key: $HDCCF_KEY"; fi
  echo "== $path"
  curl --silent --show-error --header "Content-Type: application/json" "$@" "$address$path"
  echo
}

ask /readyz
ask /v1/model
ask /v1/recommend "{\"users\": [\"$user\"], \"k\": 3}"
ask /v1/recommend "{\"items\": [\"$item\"], \"k\": 3}"
ask /v1/similar "{\"items\": [\"$item\"], \"k\": 3}"
ask /v1/score "{\"pairs\": [{\"user\": \"$user\", \"item\": \"$item\"}]}"
ask /v1/explain "{\"user\": \"$user\", \"k\": 1, \"top\": 2}"
ask "/v1/items?q=silent&limit=2"
ask /v1/recommend '{"users": ["nobody"]}'
