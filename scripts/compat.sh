#!/bin/sh
# Runs the suites that need a Redis on other versions than the one installed,
# with RESP2 and RESP3, and prints a table. Fails if a suite failed anywhere.
#
#   scripts/compat.sh [PATTERN]   only the tests that match, see go test -run
#
# The servers are Debian packages. apt resolves and verifies them as for an
# empty machine of that release, and they are unpacked, not installed, into a
# folder of their own; each runs under its own dynamic loader with its own
# libraries. That takes no root, no chroot and 130 MB, and a server is a child
# process like any other: it sees the files, and gets the signals, of the tests.
#
# A server "with RESP2" does not know HELLO, as behind a proxy or before Redis
# 6. So no client can speak anything else, without a setting.
#
# From the environment, all optional:
#   QUORUMLOCK_COMPAT_DIR      where the servers are unpacked, once: delete it for newer ones
#   QUORUMLOCK_COMPAT_MIRROR   Debian mirror; the one that apt is configured with by default
#   QUORUMLOCK_COMPAT_SERVERS  some of "redis-7.0 redis-8.0 redis-newest valkey-8.1 valkey-9"
#   QUORUMLOCK_COMPAT_RESP     some of "2 3"
#   QUORUMLOCK_COMPAT_SUITES   some of "conformance integration Sentinel ClusterSlot battery";
#                              Sentinel and ClusterSlot are integration through that constructor
#   GO, TIMEOUT, TESTFLAGS     as for make test
set -eu

servers=${QUORUMLOCK_COMPAT_SERVERS:-redis-7.0 redis-8.0 redis-newest valkey-8.1 valkey-9}
protocols=${QUORUMLOCK_COMPAT_RESP:-2 3}
suites=${QUORUMLOCK_COMPAT_SUITES:-conformance integration Sentinel ClusterSlot battery}
pattern=${1:-.}
dir=${QUORUMLOCK_COMPAT_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/quorumlock-compat}
go=${GO:-go}

cd "$(dirname "$0")/.."
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

fail() {
	echo "compat: $*" >&2
	exit 1
}

# release SERVER and program SERVER say where a server comes from: testing for
# the next Valkey, experimental for the newest Redis. Both are replaced from time
# to time; the table says which version ran.
release() {
	case $1 in
	redis-7.0) echo bookworm ;;
	redis-8.0 | valkey-8.1) echo trixie ;;
	valkey-9) echo forky ;;
	redis-newest) echo experimental ;;
	*) fail "no server $1: there are redis-7.0, redis-8.0, redis-newest, valkey-8.1 and valkey-9" ;;
	esac
}

program() { echo "${1%-*}-server"; }

# mirror prints the address of a Debian mirror.
mirror() {
	uri=${QUORUMLOCK_COMPAT_MIRROR:-}
	if [ -z "$uri" ]; then # shellcheck disable=SC2016 # the format is apt's to expand
		uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1) || :
	fi
	if [ -z "$uri" ] && command -v debootstrap >/dev/null; then
		uri=$(sed -n 's/^DEF_MIRROR="*\([^"]*\)"*$/\1/p' "$(command -v debootstrap)")
	fi
	[ -n "$uri" ] || fail "apt is configured with no mirror of Debian: name one in QUORUMLOCK_COMPAT_MIRROR"
	echo "$uri"
}

# unpack RELEASE puts both servers of a release, as far as it has them, and the
# libraries that they need into a folder.
unpack() {
	[ ! -d "$dir/$1" ] || return 0
	for tool in apt-get dpkg-deb; do
		command -v "$tool" >/dev/null || fail "no $tool: the servers are Debian packages"
	done
	keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	[ -r "$keyring" ] || fail "no $keyring: install debian-archive-keyring"
	uri=$(mirror)
	echo "compat: unpacking the servers of $1 from $uri" >&2
	work=$(mktemp -d "$dir/$1.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/root"
	: >"$work/status" # nothing is installed there
	echo "deb [signed-by=$keyring] $uri $1 main" >"$work/sources.list"
	: >"$work/preferences"
	case $1 in
	bookworm) packages=redis-server ;;
	experimental) # no release of its own: what it lacks, such as the libraries, is in unstable
		packages=redis-server
		echo "deb [signed-by=$keyring] $uri sid main" >>"$work/sources.list"
		printf '%s\n' 'Package: redis-*' 'Pin: release a=experimental' 'Pin-Priority: 900' >"$work/preferences"
		;;
	*) packages="redis-server valkey-server" ;;
	esac
	# After the machine's own configuration, which may name a proxy: nothing of
	# it is touched, and what it does after an update is not done.
	cat >"$work/apt.conf" <<-EOF
		Dir::State "$work/state";
		Dir::State::status "$work/status";
		Dir::Cache "$work/cache";
		Dir::Etc::sourcelist "$work/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::Etc::preferences "$work/preferences";
		Dir::Etc::preferencesparts "/dev/null";
		Acquire::Languages "none";
		Acquire::Retries "3";
		APT::Sandbox::User "root";
		#clear APT::Update::Post-Invoke;
		#clear APT::Update::Post-Invoke-Success;
	EOF
	apt() { apt-get -qq -y -c "$work/apt.conf" "$@" >&2; }
	apt update || fail "no package lists of $1 from $uri"
	# shellcheck disable=SC2086 # several words
	apt install --download-only --no-install-recommends $packages || fail "no packages of $1 from $uri"
	for package in "$work"/cache/archives/*.deb; do
		dpkg-deb -x "$package" "$work/root"
	done
	rm -rf "$work/root/usr/share"
	mv -T "$work/root" "$dir/$1" # at once: what is there is complete
	rm -rf "$work"
	trap - EXIT
}

# wrap SERVER RESP writes the command that the tests run as redis-server. It
# becomes the server, so that signals and the process id are the server's.
wrap() {
	root=$dir/$(release "$1")
	loader=$(find "$root" -name 'ld-linux*.so.*' -type f | head -n 1)
	libraries=$(find "$root"/lib "$root"/usr/lib -type d -name '*-linux-gnu*' 2>/dev/null | paste -sd : -)
	if [ ! -x "$loader" ] || [ -z "$libraries" ] || [ ! -x "$root/usr/bin/$(program "$1")" ]; then
		fail "$root is not complete: delete it, it will be unpacked again"
	fi
	hello=
	[ "$2" = 3 ] || hello='--rename-command HELLO ""'
	cat >"$dir/$1-resp$2" <<-EOF
		#!/bin/sh
		echo "\$\$" >>"\${QUORUMLOCK_COMPAT_STARTS:-/dev/null}"
		exec "$loader" --library-path "$libraries" "$root/usr/bin/$(program "$1")" "\$@" $hello
	EOF
	chmod +x "$dir/$1-resp$2"
}

# packages SUITE prints the packages of a suite.
packages() {
	case $1 in
	conformance) echo ./internal/node/... ;;
	integration) echo . ./tests/integration ./examples/spread ;;
	Sentinel | ClusterSlot) echo . ./tests/integration ;;
	battery) echo ./tests/battery ;;
	*) fail "no suite $1: there are conformance, integration, Sentinel, ClusterSlot and battery" ;;
	esac
}

# A test for each kind of lock. Integration has failed without one of them.
kinds="TestALeaseExcludesOthersAndNamesItsHolder TestReadersShareANameThatWritersHaveAlone TestDowngradeLetsNoWriterIn
	TestPermitsBoundHowManyWorkAtOnce TestClientsThatTakeRandomPairsOfNames TestAHolderIsAskedAndThenRevoked
	TestNothingStaysBehindHoweverALeaseEnds TestAnotherTTLHoldsOnTheServers TestALeaderYieldsOnceToTheBestCandidate
	TestTheShardsAreSpreadOverTheProcessesThatLive"

# run SERVER RESP SUITE runs a suite and prints its verdict. That needs a server
# to have been started: a suite that ran on another one has shown nothing.
run() {
	log=$logs/$1-resp$2-$3.log
	starts=$logs/starts
	: >"$starts"
	at=$(packages "$3")
	status=0
	constructor=
	case $3 in Sentinel | ClusterSlot) constructor=$3 ;; esac
	( # shellcheck disable=SC2086 # TESTFLAGS are several words
		QUORUMLOCK_NIGHTLY=1 REDIS_SERVER=$dir/$1-resp$2 QUORUMLOCK_COMPAT_STARTS=$starts QUORUMLOCK_RESP=$2 QUORUMLOCK_CONSTRUCTOR=$constructor \
			"$go" test -count=1 -v -run "$pattern" -timeout "${TIMEOUT:-30m}" ${TESTFLAGS:-} $at
	) >"$log" 2>&1 || status=$?
	passed=$(grep -c '^ *--- PASS' "$log") || :
	failed=$(grep -c '^ *--- FAIL' "$log") || :
	skipped=$(grep -c '^ *--- SKIP' "$log") || :
	verdict="$passed passed"
	[ "$skipped" = 0 ] || verdict="$verdict, $skipped skipped"
	[ "$status" = 0 ] || verdict="FAILED: $failed failed, $verdict"
	if [ "$status" = 0 ] && [ "$pattern" != . ] && [ "$passed" = 0 ]; then
		verdict="none matches"
	elif [ "$status" = 0 ] && { [ "$passed" = 0 ] || [ ! -s "$starts" ]; }; then
		verdict="FAILED: nothing ran on this server"
		status=1
	elif [ "$status" = 0 ] && [ "$pattern" = . ] && [ "$3" = integration ]; then
		for test in $kinds; do
			grep -q "^--- PASS: $test " "$log" || { verdict="FAILED: $test has not passed"; status=1; }
		done
	fi
	echo "$verdict"
	return "$status"
}

trap 'exit 130' INT TERM HUP
for suite in $suites; do
	at=$(packages "$suite")
done
for server in $servers; do
	from=$(release "$server")
	unpack "$from"
	for protocol in $protocols; do
		wrap "$server" "$protocol"
	done
done
logs=$(mktemp -d)
status=0
line="| server | version | protocol |"
rule="|---|---|---|"
for suite in $suites; do
	line="$line $suite |"
	rule="$rule---|"
done
printf '%s\n%s\n' "$line" "$rule"
for server in $servers; do
	for protocol in $protocols; do
		version=$("$dir/$server-resp$protocol" --version 2>/dev/null | sed -n 's/.* v=\([^ ]*\).*/\1/p')
		line="| ${server%-*} | ${version:-?} ($(release "$server")) | RESP$protocol |"
		for suite in $suites; do
			verdict=$(run "$server" "$protocol" "$suite") || status=1
			line="$line $verdict |"
		done
		echo "$line"
	done
done
if [ "$status" -ne 0 ]; then
	echo
	grep -H '^ *--- FAIL\|^panic:\|^FAIL' "$logs"/*.log | sed "s,^$logs/,,"
	echo "compat: a suite failed; the logs are in $logs" >&2
else
	rm -rf "$logs"
fi
exit "$status"
