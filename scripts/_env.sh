# Sourced by the scripts beside it: makes .venv once, from the locked requirements, and again when a lock changes.
# usage: . scripts/_env.sh; ensure requirements.lock

find_python() {
  for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3; do
    if command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$name"
      return 0
    fi
  done
  echo "goliath_actors needs Python 3.11 or newer; none was found (set PYTHON=/path/to/python3)" >&2
  return 1
}

ensure() {
  lock=$1
  stamp=.venv/.stamp-$lock
  if [ -f "$stamp" ] && cmp -s "$lock" "$stamp" && [ -x .venv/bin/goliath-actors ]; then
    return 0
  fi
  if [ ! -x .venv/bin/python ]; then
    python=$(find_python) || return 1
    echo "setting up .venv with $("$python" --version) (once)" >&2
    "$python" -m venv .venv || return 1
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock" || return 1
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . || return 1
  cp "$lock" "$stamp"
}
