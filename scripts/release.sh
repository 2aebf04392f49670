#!/bin/sh
# Makes a version ready to be tagged: the modules require that version of each other, a user outside the
# checkout can install them, and the tags to set on the commit are printed.
set -eu
version=${1:?usage: scripts/release.sh v0.2.0}
case $version in v[0-9]*.[0-9]*.[0-9]*) ;; *) echo "$version: a version is v0.2.0" >&2; exit 2 ;; esac
grep -q "^## \[${version#v}\]" CHANGELOG.md || { echo "CHANGELOG.md has no section [${version#v}]" >&2; exit 1; }
published=$(git ls-files '*go.mod' | grep -v -e '^benchmarks/' -e '^examples/' -e '^interop/' -e '^tests/')
for file in $(git ls-files '*go.mod'); do
	for module in $published; do
		module=$(sed -n 's/^module //p' "$module")
		if grep -q "^	$module v" "$file"; then go mod edit -require="$module@$version" "$file"; fi
	done
done
go test -count=1 ./tests/release
echo "make lint, commit, and set these tags:"
for file in $published; do
	dir=$(dirname "$file")
	if [ "$dir" = . ]; then echo "$version"; else echo "$dir/$version"; fi
done
