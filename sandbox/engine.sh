#!/bin/sh
# Makes sure that a Docker engine answers, where that is possible; says so loudly where it is not.
# Always exits 0: without an engine the sandbox falls back to process isolation, which it says again itself.
set -u

WAIT_S=${RSTAR2_ENGINE_WAIT_S:-40}
LOG_DIR=/var/log
[ -w "$LOG_DIR" ] || LOG_DIR=${TMPDIR:-/tmp}
LOG=$LOG_DIR/rstar2-dockerd.log

say() { echo "engine: $*" >&2; }

give_up() {
    say "!!!! NO DOCKER ENGINE: $1"
    say "!!!! Code that the model writes will run in namespaces of this machine, not in a container."
    exit 0
}

answers() {
    if command -v docker >/dev/null 2>&1; then
        timeout 10 docker info >/dev/null 2>&1
    else
        [ -S /var/run/docker.sock ] && command -v curl >/dev/null 2>&1 &&
            curl -sf --max-time 10 --unix-socket /var/run/docker.sock http://localhost/_ping >/dev/null
    fi
}

answers && exit 0
[ -z "${DOCKER_HOST:-}" ] || give_up "DOCKER_HOST=$DOCKER_HOST does not answer"
[ "$(id -u)" = 0 ] || give_up "none answers and only root can start one; start Docker, or join the group docker"

if ! command -v dockerd >/dev/null 2>&1; then
    command -v apt-get >/dev/null 2>&1 || give_up "there is no dockerd, and no apt-get to install it with"
    say "installing docker.io with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends docker.io iptables; } >"$LOG" 2>&1 ||
        give_up "apt-get could not install docker.io; see $LOG"
fi

say "starting dockerd (log: $LOG)"
# In a session of its own: it stays when this terminal and this build are gone.
setsid dockerd >>"$LOG" 2>&1 </dev/null &
daemon=$!
waited=0
until answers; do
    kill -0 "$daemon" 2>/dev/null || give_up "dockerd ended at once; the end of $LOG: $(tail -n 2 "$LOG")"
    [ "$waited" -lt "$WAIT_S" ] || give_up "dockerd does not answer after $WAIT_S s; see $LOG"
    sleep 1
    waited=$((waited + 1))
done
say "dockerd answers"
