#!/bin/sh
# Makes a version ready to be tagged: its section of CHANGELOG.md has a date, the modules require that version of each
# other, a user outside the checkout can install them, and the tags to set on the commit are printed.
set -eu
cd "$(dirname "$0")/.."
version=${1:?usage: scripts/release.sh 0.2.0}
version=v${version#v}
echo "$version" | grep -qxE 'v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?' || {
	echo "$version: a version is v0.2.0, or v0.2.0-rc.1" >&2
	exit 2
}
refuse() { echo "$1" >&2; exit 1; }
heading=$(grep -F "## [${version#v}]" CHANGELOG.md) || refuse "CHANGELOG.md has no section [${version#v}]"
case $heading in *" - "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] | *" - not tagged yet") ;; *)
	refuse "CHANGELOG.md: give the section a date, such as: ## [${version#v}] - $(date +%Y-%m-%d)" ;;
esac
published=$(scripts/published.sh)
tags=$(for dir in $published; do if [ "$dir" = . ]; then echo "$version"; else echo "$dir/$version"; fi; done)
for tag in $tags; do
	[ -z "$(git tag --list "$tag")" ] || refuse "the tag $tag exists: choose another version"
done
# An earlier run may have written these.
changed=$(git status --porcelain | grep -v -e '\.mod$' -e ' CHANGELOG\.md$') && refuse "commit or remove these first:
$changed"
dated=$(sed -e "s/^\(## \[${version#v}\] - \)not tagged yet\$/\1$(date +%Y-%m-%d)/" \
	-e "s,^\(\[${version#v}\]: .*\)/commits/main\$,\1/releases/tag/$version," CHANGELOG.md)
echo "$dated" >CHANGELOG.md
for file in $(git ls-files '*.mod'); do
	for dir in $published; do
		module=$(sed -n 's/^module //p' "$dir/go.mod")
		if grep -q "^	$module v" "$file"; then go mod edit -require="$module@$version" "$file"; fi
	done
done
QUORUMLOCK_NIGHTLY=1 go test -count=1 ./tests/release
echo "make lint, commit, and set these tags:"
echo "$tags"
