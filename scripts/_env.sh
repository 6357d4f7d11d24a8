# Sourced by the scripts beside it: makes .venv once, from the locked requirements, and again when a lock changes.
# usage, in the checkout's folder: . scripts/_env.sh; ensure requirements.lock

find_python() {
  for name in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
    if command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$name"
      return 0
    fi
  done
  echo "goliath_actors needs Python 3.11 or newer; none was found (set PYTHON=/path/to/python3)" >&2
  return 1
}

is_ready() {
  [ ! -e .venv/.unfinished ] && [ -x .venv/bin/goliath-actors ] && cmp -s "$1" ".venv/.stamp-$1"
}

# In a subshell, so that its end gives the lock back, however it ends.
ensure() (
  lock=$1
  is_ready "$lock" && exit 0
  python=$(find_python) || exit 1
  # Two first commands at once: the second waits, and finds everything made. A lock of the kernel's is gone with its
  # holders, so that none can be left behind; any file does to hold it, and this one is always there.
  exec 9<scripts/_env.sh
  "$python" -c 'import fcntl
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("waiting for another command that sets up .venv", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)' >&2 || exit 1
  is_ready "$lock" && exit 0
  # Invariant: .unfinished is there exactly while a set-up goes on, or since one was interrupted: what is half made may
  # look whole to pip, so it is not mended but made anew.
  if [ -e .venv/.unfinished ] || { [ -d .venv ] && ! .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
    echo "making .venv anew: its set-up was interrupted, or it has no pip" >&2
    rm -rf .venv
  fi
  mkdir -p .venv
  : >.venv/.unfinished
  if [ ! -x .venv/bin/python ]; then
    echo "setting up .venv with $("$python" --version) (once)" >&2
    "$python" -m venv .venv || exit 1
  else
    echo "adding what $lock names to .venv (once, a minute or two)" >&2
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock" || exit 1
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . || exit 1
  cp "$lock" ".venv/.stamp-$lock"
  rm .venv/.unfinished
)
