#!/bin/sh
# Draws docs/cli.svg from what the command prints on three throwaway servers. Needs redis-server.
#
#   scripts/recording.sh          draws
#   scripts/recording.sh play     runs the commands in this terminal
set -eu
cd "$(dirname "$0")/.."

columns=80

# picture draws the lines of stdin. One text for each line, with its spaces kept, looks the same in every
# renderer.
picture() {
	lines=$(tr -d '\r' | fold -s -w $columns |
		sed -e 's/ *$//; s/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g' -e 's|\x1b\[0m|</tspan>|g; s|\x1b\[\([0-9]*\)m|<tspan class="c\1">|g')
	width=$((columns * 8 + 26)) height=$(($(printf '%s\n' "$lines" | wc -l) * 18 + 26))
	cat <<-END
		<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $width $height" width="$width" height="$height" role="img" aria-labelledby="title desc">
		<title id="title">The command line: doctor, run, inspect, and a lock that is held</title>
		<desc id="desc">A terminal. quorumlock doctor checks three servers, run prints a fencing token under a lock, inspect names the
		holder of another lock, and a second run stops after a second, because that lock is held.</desc>
		<style>
		text { font: 13px "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328 } .c1 { font-weight: 600 }
		.c31 { fill: #c2410c } .c32 { fill: #007a5a } .c33 { fill: #8a5a00 } .card { fill: #f6f8fa; stroke: #d1d9e0 }
		@media (prefers-color-scheme: dark) {
		text { fill: #f0f6fc } .c31 { fill: #f28c4b } .c32 { fill: #3fb993 } .c33 { fill: #e69f00 } .card { fill: #151b23; stroke: #3d444d }
		}
		</style>
		<rect class="card" x="0.5" y="0.5" width="$((width - 1))" height="$((height - 1))" rx="6"/>
	END
	printf '%s\n' "$lines" | awk '$0 != "" { printf "<text x=\"16\" y=\"%d\" xml:space=\"preserve\">%s</text>\n", NR * 18 + 9, $0 }'
	echo '</svg>'
}

if [ "${1:-}" != play ]; then
	script -qec "stty cols $columns; sh $0 play" /dev/null </dev/null | picture >docs/cli.svg
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
	printf '\033[1m$ %s\033[0m\n' "$1"
	sh -c "$1" || :
	printf '\n'
}

types 'quorumlock doctor'
types "quorumlock run report --wait 0 -- sh -c 'echo token \$QUORUMLOCK_TOKEN'"
quorumlock run deploy --holder alice -- sleep 4 &
sleep 0.5
types 'quorumlock inspect deploy'
types 'quorumlock run deploy --wait 1s -- make deploy; echo exit code $?'
wait $!
