#!/bin/sh
# Compares the exported API of the modules that people import with a tag, and fails where a
# user's code would no longer compile. Before v1 such a change needs a line in CHANGELOG.md.
set -eu
base=${1:?usage: scripts/apidiff.sh TAG}
tool=golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e
cd "$(dirname "$0")/.."
root=$(pwd)
old=$(mktemp -d)
trap 'git -C "$root" worktree remove --force "$old/tree" 2>/dev/null; rm -rf "$old"' EXIT
git worktree add --quiet --detach "$old/tree" "$base"
status=0
for dir in $(scripts/published.sh -imported); do
	if [ ! -f "$old/tree/$dir/go.mod" ]; then
		echo "-- $dir: new since $base"
		continue
	fi
	module=$(cd "$dir" && go list -m -f '{{.Path}}' | head -n 1)
	(cd "$old/tree/$dir" && GOWORK=off go run "$tool" -m -w "$old/api" "$module")
	if ! (cd "$dir" && GOWORK=off go run "$tool" -m -incompatible "$old/api" "$module") >"$old/broken"; then
		echo "-- $dir: cannot be compared"
		status=1
		continue
	fi
	broken=$(grep -v -e '/internal/' -e '^Ignoring internal' "$old/broken" || true)
	if [ -n "$broken" ]; then
		echo "-- $dir: breaks what was there in $base:"
		echo "$broken"
		status=1
	else
		echo "-- $dir: compatible with $base"
	fi
done
exit $status
