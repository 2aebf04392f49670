#!/bin/sh
# Records docs/cli.svg: the command line on three throwaway servers. Needs termtosvg
# (apt-get install termtosvg) and redis-server.
#
#   scripts/recording.sh          records
#   scripts/recording.sh play     plays what is recorded, in this terminal
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" != play ]; then
	recorded=$(mktemp)
	termtosvg "$recorded" -g 84x34 -m 400 -M 2500 -D 2500 -t window_frame -c "sh $0 play"
	# It begins with its last frame, which has everything, and stays there for readers who want no motion.
	sed -e '1s|<svg |&role="img" aria-labelledby="title desc" |' -e '1s|>|>\
<title id="title">The command line: doctor, run, inspect, and a lock that is held</title>\
<desc id="desc">A terminal. quorumlock doctor checks three servers, run prints a fencing token under a lock, inspect names the\
holder of another lock, and a second run gives up after a second, because that lock is held.</desc>\
<style>\
#screen_view { animation-delay: calc(var(--animation-duration) * -0.97) }\
@media (prefers-reduced-motion: reduce) { #screen_view { animation-play-state: paused } }\
@media (prefers-color-scheme: dark) { #terminalui { stroke: #75715e } }\
</style>|' "$recorded" >docs/cli.svg
	rm "$recorded"
	exit
fi

work=$(mktemp -d)
servers=
trap 'kill $servers 2>/dev/null || :; wait; rm -rf "$work"' EXIT
for port in 17411 17412 17413; do
	"${REDIS_SERVER:-redis-server}" --port $port --bind 127.0.0.1 --appendonly yes --appendfsync always \
		--aof-load-truncated no --dir "$work" --appenddirname "aof$port" >/dev/null &
	servers="$servers $!"
done
go build -o "$work/quorumlock" ./cmd/quorumlock
PATH="$work:$PATH"
export QUORUMLOCK_NODES=127.0.0.1:17411,127.0.0.1:17412,127.0.0.1:17413
sleep 1

# types shows a command as if it was typed, and runs it.
types() {
	printf '$ %s\n' "$1"
	sh -c "$1" || :
	sleep 2
	printf '\n'
}

clear
types 'quorumlock doctor'
types 'quorumlock run nightly-report --wait 0 -- sh -c "echo token \$QUORUMLOCK_TOKEN"'
quorumlock run deploy --holder alice -- sleep 8 &
sleep 0.5
types 'quorumlock inspect deploy'
types 'quorumlock run deploy --wait 1s -- make deploy; echo exit code $?'
wait $!
sleep 1
