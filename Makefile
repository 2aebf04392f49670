# What a developer and CI run, see CONTRIBUTING.md. GNU make 3.81 and a POSIX
# shell are enough: that is what macOS has.

GO ?= go
GOLANGCI_VERSION := v2.15.0
GOVULNCHECK_VERSION := v1.9.0
GOLANGCI := $(CURDIR)/bin/golangci-lint-$(GOLANGCI_VERSION)

# Knobs, for example: make stress PKG=./internal/node COUNT=100
TIMEOUT ?= 15m
TESTFLAGS ?=
PKG ?=
COUNT ?= 20
BENCH ?= .
BENCHFLAGS ?=
SEEDS ?= 200000
ROWS ?= .
DURATION ?= 30m
SEED ?= 1
NODES ?= 3
RACE ?= -race
FUZZTIME ?= 30s
VERSION ?=
BASE ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)

# Runs a command in the directory of each module of go.work that has packages,
# all of them even if one fails, and says of each how it went.
define each-module
	@modules=$$($(GO) list -m) || exit 1; status=0; for module in $$modules; do \
		cd "$$($(GO) list -m -f '{{.Dir}}' "$$module")"; \
		if [ -z "$$(find . -name '*.go' | head -n 1)" ]; then echo "-- $$module: $@: no packages"; continue; fi; \
		begun=$$(date +%s); verdict=ok; \
		{ $(1); } || { verdict=FAILED; status=1; }; \
		echo "-- $$module: $@: $$verdict ($$(( $$(date +%s) - begun )) s)"; \
	done; exit $$status
endef

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# fence/ is tested on PostgreSQL and adapters/goose on MariaDB. Debian keeps their servers out of PATH.
.PHONY: deps
deps: ## Install redis-server, PostgreSQL and MariaDB if they are missing (REDIS_SERVER and POSTGRES_BIN name others).
	@redis=; command -v "$${REDIS_SERVER:-redis-server}" >/dev/null 2>&1 || redis=yes; \
	postgres=; [ -n "$$POSTGRES_BIN" ] || command -v initdb >/dev/null 2>&1 || \
		ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || postgres=yes; \
	mariadb=; command -v mariadbd >/dev/null 2>&1 || [ -x /usr/sbin/mariadbd ] || mariadb=yes; \
	if [ -z "$$redis$$postgres$$mariadb" ]; then exit 0; fi; \
	root() { \
		if [ "$$(id -u)" -eq 0 ]; then "$$@"; elif command -v sudo >/dev/null 2>&1; then sudo "$$@"; \
		else echo "make deps: not root and no sudo to run: $$*" >&2; return 1; fi; \
	}; \
	echo "make deps: installing$${redis:+ redis-server}$${postgres:+ PostgreSQL}$${mariadb:+ MariaDB}, which the tests run"; \
	if command -v apt-get >/dev/null 2>&1; then \
		root apt-get update -qq </dev/null || echo "make deps: no fresh package lists, trying those that are here" >&2; \
		root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			$${redis:+redis-server} $${postgres:+postgresql} $${mariadb:+mariadb-server-core} </dev/null; \
	elif command -v dnf >/dev/null 2>&1; then root dnf install -y $${redis:+redis} $${postgres:+postgresql-server} $${mariadb:+mariadb-server} </dev/null; \
	elif command -v apk >/dev/null 2>&1; then root apk add $${redis:+redis} $${postgres:+postgresql} $${mariadb:+mariadb} </dev/null; \
	elif command -v brew >/dev/null 2>&1; then brew install $${redis:+redis} $${postgres:+postgresql} $${mariadb:+mariadb} </dev/null; \
	else echo "make deps: no apt-get, dnf, apk or brew here" >&2; \
	fi; \
	command -v "$${REDIS_SERVER:-redis-server}" >/dev/null 2>&1 || { \
		echo "make deps: there is still no redis-server in PATH: install it by hand, or name it in REDIS_SERVER" >&2; exit 1; \
	} # without PostgreSQL or MariaDB their tests say that they are skipped, and fail where CI=true

# Two of the four parts at a time. In test-raced are most packages: the longest ones first and one at a time, because
# their tests look at real time, and the others two at a time. gotestsum prints a line for each package as it
# ends; go test holds lines back to keep their order. What is pure starts no goroutine, and what runs in
# virtual time computes all the time: the race detector would make the one ten times as long, and
# the other four times. These (test-computing) get what the others leave of the processors. The comparison of script
# and simulation and the test kit do not: they look at milliseconds of real time. All of it runs under the race
# detector every night, with the tests and the counts that make test has no time for (make test-nightly). The packages
# of WHOLE_TREE read files outside their module, of which the cache of go test knows nothing: -count=1. make lint runs
# vet. GOGC=400 takes a third of their processor time from tests in virtual time. The last line says how
# many tests were skipped, and why. A slot of a cluster wakes waiters by other commands: two tests show that here, and
# make failover runs all integration tests through ClusterSlot.
PACKAGES = $$($(GO) list -m | sed 's,$$,/...,')
WHOLE_TREE = ./tests/mutants ./tests/release
COMPUTING = ./internal/sim ./internal/quorum ./tests/virtual ./election ./spread/internal/balance
REALTIME = ./tests/differential ./quorumlocktest
UNRACED = $(COMPUTING) $(REALTIME)
LONGEST = ./tests/battery ./tests/integration ./internal/node ./internal/redistest
GOTESTSUM = $(GO) run gotest.tools/gotestsum@v1.13.0 --format pkgname --hide-summary skipped
RESULTS = bin/test
SKIPPED = @$(GO) run ./tests/skipped $(RESULTS)/*.json
.PHONY: test
test: deps ## Test every module, with the race detector but for what computes all the time.
	@rm -rf $(RESULTS) && mkdir -p $(RESULTS)
	GOGC=400 $(MAKE) -j 2 -k test-raced test-realtime test-computing test-whole
	$(SKIPPED)

.PHONY: test-raced test-realtime test-computing test-whole
test-raced:
	@status=0; \
	$(GOTESTSUM) --jsonfile $(RESULTS)/longest.json -- -vet=off -race -p 1 -timeout $(TIMEOUT) $(TESTFLAGS) $(LONGEST) || status=1; \
	QUORUMLOCK_CONSTRUCTOR=ClusterSlot $(GOTESTSUM) --jsonfile $(RESULTS)/slot.json -- -vet=off -race -timeout $(TIMEOUT) \
		-run '^TestWaitersAreGranted|^TestNoPublishedMessage' $(TESTFLAGS) ./tests/integration || status=1; \
	$(GOTESTSUM) --jsonfile $(RESULTS)/raced.json -- -vet=off -race -p 2 -timeout $(TIMEOUT) $(TESTFLAGS) \
		$$($(GO) list $(PACKAGES) | grep -v $$(printf ' -e %s$$' $(patsubst .%,%,$(UNRACED) $(LONGEST) $(WHOLE_TREE)))) || status=1; \
	exit $$status
test-realtime:
	$(GOTESTSUM) --jsonfile $(RESULTS)/realtime.json -- -vet=off -timeout $(TIMEOUT) $(TESTFLAGS) $(REALTIME)
test-computing:
	nice -n 19 $(GOTESTSUM) --jsonfile $(RESULTS)/computing.json -- -vet=off -timeout $(TIMEOUT) $(TESTFLAGS) $(COMPUTING)
test-whole:
	$(GOTESTSUM) --jsonfile $(RESULTS)/whole.json -- -vet=off -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) $(WHOLE_TREE)

.PHONY: test-nightly
test-nightly: deps ## Test every module whole and under the race detector, with what make test has no time for.
	@rm -rf $(RESULTS) && mkdir -p $(RESULTS)
	QUORUMLOCK_NIGHTLY=1 $(GOTESTSUM) --jsonfile $(RESULTS)/nightly.json -- -vet=off -count=1 -race -timeout 2h $(TESTFLAGS) $(PACKAGES)
	$(SKIPPED)

.PHONY: test-short
test-short: deps ## Test every module with -short and without the race detector.
	$(GOTESTSUM) -- -vet=off -short -timeout $(TIMEOUT) $(TESTFLAGS) $(PACKAGES)

.PHONY: sim
sim: ## Simulate the protocol with many seeds (SEEDS=200000).
	QUORUMLOCK_SIM_SEEDS=$(SEEDS) $(GO) test -count=1 -timeout 2h $(TESTFLAGS) ./internal/sim/...

.PHONY: differential
differential: deps ## Compare the Lua with the simulation's script on a real server (DURATION=30m SEED=1).
	cd tests/differential && $(GO) test -count=1 -timeout 0 -v -run OfAServer $(TESTFLAGS) . -during $(DURATION) -seed $(SEED)

.PHONY: mutants
mutants: deps ## Plant known bugs, one after another; each must be caught, or this fails.
	$(GO) run ./tests/mutants

# The packages of npm go into a directory that git ignores, without a lock file,
# which would name a registry: package.json has exact versions.
.PHONY: interop
interop: deps ## Test on real servers that redsync, redislock, node-redlock, an older commit and we exclude each other, and compile docs/migrating.md with each peer (needs node and npm).
	@command -v npm >/dev/null 2>&1 || { echo "make interop: there is no npm in PATH: install node 18 or newer with npm" >&2; exit 1; }
	@mkdir -p bin/interop && cp interop/node/package.json interop/node/redlock.js bin/interop/
	cd bin/interop && npm install --no-package-lock --no-audit --no-fund --ignore-scripts --silent
	cd interop && $(GO) vet -tags peers ./... && $(GO) test -tags peers -count=1 -timeout $(TIMEOUT) -v -run ClientGo ./...
	cd interop && QUORUMLOCK_INTEROP=all $(GO) test -race -count=1 -timeout $(TIMEOUT) -v $(TESTFLAGS) ./...

.PHONY: spec-deps
spec-deps: ## Install spin, the model checker, if it is missing (SPIN names another binary).
	@if command -v "$${SPIN:-spin}" >/dev/null 2>&1; then exit 0; fi; \
	root() { \
		if [ "$$(id -u)" -eq 0 ]; then "$$@"; elif command -v sudo >/dev/null 2>&1; then sudo "$$@"; \
		else echo "make spec-deps: not root and no sudo to run: $$*" >&2; return 1; fi; \
	}; \
	echo "make spec-deps: installing spin, which checks the models"; \
	if command -v apt-get >/dev/null 2>&1; then \
		root apt-get update -qq </dev/null || echo "make spec-deps: no fresh package lists, trying those that are here" >&2; \
		root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends spin </dev/null; \
	elif command -v dnf >/dev/null 2>&1; then root dnf install -y spin </dev/null; \
	elif command -v brew >/dev/null 2>&1; then brew install spin </dev/null; \
	else echo "make spec-deps: no apt-get, dnf or brew here" >&2; \
	fi; \
	command -v spin >/dev/null 2>&1 || { \
		echo "make spec-deps: there is still no spin in PATH: install it by hand, or name it in SPIN" >&2; exit 1; \
	}

.PHONY: spec
spec: spec-deps ## Check the models of the protocol to exhaustion, and that every planted bug is found (SPEC=part of a line, see spec/README.md).
	spec/run $(SPEC)

.PHONY: fuzz
fuzz: ## Fuzz every fuzz target of every module, one after another (FUZZTIME=30s).
	$(call each-module,for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' "$$package" | grep '^Fuzz'); do \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) "$$package" || exit 1; \
		done; \
	done)

.PHONY: compat
compat: ## Run the suites on each Redis and Valkey that Debian has, with RESP2 and RESP3 (see scripts/compat.sh).
	scripts/compat.sh $(ROWS)

# Rows with a rate or a short gap, of which the race detector would take much: they run without it as well, one of
# them with 3,000 callers in place of 500.
RATES = TestEightProcessesShareOneLock|TestAcquisitionsStarveNoRenewal|TestALostReplyIsNeitherARefusalNorALeftover|TestALostReplyToAReaderIsNeitherARefusalNorALeftover|TestAWholeClusterGivesNoNameTwiceAndItsOtherBucketsGoOn|TestAClockThatIsSetOnAMinorityCausesNoSecondLease
# The rows of failover groups are in make failover, which has a report of its own (docs/reports/failovers.md), and the
# soak in make soak.
FAILOVER_ROWS = TestAMaster|TestALeaseThatIsLonger|TestALockThatRepl|TestAFailoverIn
.PHONY: battery
battery: deps ## Try to break it on real servers, full counts: a line for each figure (ROWS=regexp; all take over three hours on two cores).
	@# Each in a process of its own: what one leaves in memory must not make another slow.
	cd tests/battery && rows=$$($(GO) test -race -list '$(ROWS)') || { echo "$$rows"; exit 1; }; failed=0; \
	for row in $$rows; do case $$row in TestSoak | $(subst |,*|,$(FAILOVER_ROWS))*) continue ;; esac; case $$row in Test*) \
		QUORUMLOCK_BATTERY=full $(GO) test -race -count=1 -timeout 3h -run "^$$row\$$" $(TESTFLAGS) || failed=1 ;; \
	esac; case $$row in $(RATES)) \
		QUORUMLOCK_BATTERY=full $(GO) test -count=1 -timeout 3h -run "^$$row\$$" $(TESTFLAGS) || failed=1 ;; \
	esac; done; exit $$failed # without a package: go test shows the lines as they come

FAILOVERS ?= 5
.PHONY: failover
failover: deps ## Try every failover of docs/reports/failovers.md, FAILOVERS=5 times each, and run the integration tests through Sentinel and ClusterSlot.
	cd tests/battery && QUORUMLOCK_BATTERY=full QUORUMLOCK_FAILOVERS=$(FAILOVERS) $(GO) test -race -vet=off -count=1 -parallel 12 -timeout 60m \
		-run '$(FAILOVER_ROWS)' $(TESTFLAGS)
	QUORUMLOCK_NIGHTLY=1 QUORUMLOCK_CONSTRUCTOR=Sentinel $(GO) test -race -vet=off -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) ./tests/integration
	QUORUMLOCK_NIGHTLY=1 QUORUMLOCK_CONSTRUCTOR=ClusterSlot $(GO) test -race -vet=off -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) ./tests/integration

.PHONY: battery-memory
battery-memory: deps ## The row of the battery that is about resident memory, without the race detector, which has most of it.
	cd tests/battery && QUORUMLOCK_BATTERY=full $(GO) test -count=1 -timeout 1h -run '^TestAStoppedNode' $(TESTFLAGS)

.PHONY: soak
soak: deps ## Four processes, 32 locks each, a random fault every 2 s (DURATION=30m SEED=1 NODES=3; RACE= is without the race detector).
	cd tests/battery && QUORUMLOCK_SOAK=$(DURATION) QUORUMLOCK_SEED=$(SEED) QUORUMLOCK_SOAK_NODES=$(NODES) $(GO) test $(RACE) -count=1 -timeout 0 -run '^TestSoak' $(TESTFLAGS)

CHILDREN ?= 50
.PHONY: cli-children
cli-children: deps ## Take the lock away from commands that ignore TERM: all must be dead before another client has it (CHILDREN=50).
	cd cmd/quorumlock && QUORUMLOCK_CLI_CHILDREN=$(CHILDREN) $(GO) test -race -count=1 -v -timeout 1h -run '^TestEveryProcess' $(TESTFLAGS) ./internal/cli

.PHONY: stress
stress: deps ## Repeat tests under the race detector (PKG=./internal/node COUNT=20; all by default).
	$(GO) test -race -count=$(COUNT) -timeout 2h $(TESTFLAGS) $(if $(PKG),$(PKG),$$($(GO) list -m | sed 's,$$,/...,'))

.PHONY: bench
bench: deps ## Run the benchmarks of the root package (BENCH=regexp BENCHFLAGS="-count 6").
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(BENCHFLAGS) .

# COUNT and DURATION have other defaults further up, for other targets.
LEASES ?= 50000,100000
WORKLOADS ?= .
.PHONY: bench-build
bench-build: # with the newest versions of the peers, see benchmarks/newest.mod
	@cd benchmarks && GOWORK=off $(GO) build -modfile=newest.mod -o ../bin/benchmarks .

.PHONY: bench-newest
bench-newest: ## Tidy benchmarks/newest.mod after a change to the imports or to its versions.
	cd benchmarks && GOWORK=off $(GO) mod tidy -modfile=newest.mod

.PHONY: bench-peers
bench-peers: COUNT := $(if $(filter file,$(origin COUNT)),5,$(COUNT))
bench-peers: DURATION := $(if $(filter file,$(origin DURATION)),2s,$(DURATION))
bench-peers: deps bench-build ## Measure against other lock libraries, and write docs/benchmarks.md: an hour (COUNT=5 DURATION=2s WORKLOADS=regexp LEASES=50000,100000).
	bin/benchmarks -count $(COUNT) -duration $(DURATION) -leases $(LEASES) -workloads '$(WORKLOADS)'

.PHONY: bench-charts
bench-charts: bench-build ## Write docs/benchmarks.md and its charts again from docs/benchmarks/results.json, without measuring.
	bin/benchmarks -render

.PHONY: bench-gate
bench-gate: deps bench-build ## Check the goals for speed in a short form, four minutes: one missed by more than a third fails.
	bin/benchmarks -gate -workloads '$(WORKLOADS)'

.PHONY: bench-cluster
bench-cluster: deps bench-build ## Compare a client of a whole Redis Cluster with a client of one slot, in turns on the same servers: five minutes.
	bin/benchmarks -cluster -workloads '$(WORKLOADS)'

.PHONY: vuln
vuln: ## Look for known weaknesses in what each module compiles (needs the network).
	$(call each-module,$(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...)

.PHONY: release
release: ## Make a version ready to be tagged (VERSION=0.2.0).
	scripts/release.sh $(VERSION)

.PHONY: apidiff
apidiff: ## Compare the exported API with a release: what breaks its users fails (BASE=v0.1.0).
	scripts/apidiff.sh $(BASE)

.PHONY: cover
cover: deps ## Measure what the root module's tests cover (cover.out).
	$(GO) test -timeout $(TIMEOUT) -coverpkg=./... -coverprofile=cover.out ./...
	@$(GO) tool cover -func=cover.out | tail -1

# Those that take -nodes get three throwaway servers; those that do not end by
# themselves get SIGINT after LIMIT seconds.
LIMIT ?= 10
.PHONY: examples-run
examples-run: deps ## Run the examples, on throwaway servers where they need some.
	@set -e; work=$$(mktemp -d); servers=; nodes=; \
	trap 'kill $$servers 2>/dev/null || :; wait; rm -rf "$$work"' EXIT; \
	for port in 17401 17402 17403; do \
		"$${REDIS_SERVER:-redis-server}" --port $$port --bind 127.0.0.1 --save "" --dir "$$work" >/dev/null & \
		servers="$$servers $$!"; nodes="$$nodes,127.0.0.1:$$port"; \
	done; \
	sleep 1; cd examples; mains=$$($(GO) list -f '{{if eq .Name "main"}}{{.Dir}}{{end}}' ./... ./tracing ./deploy); \
	for main in $$mains; do \
		name=$$(basename "$$main"); echo "-- $$name"; $(GO) build -o "$$work/$$name" "$$main"; \
		args=; if grep -q '"nodes"' "$$main"/*.go; then args="-nodes $${nodes#,}"; fi; \
		if grep -q '"endpoint"' "$$main"/*.go; then args="$$args -endpoint none"; fi; \
		"$$work/$$name" $$args </dev/null & example=$$!; \
		( sleep $(LIMIT); kill $$example ) >/dev/null 2>&1 & limit=$$!; \
		wait $$example; kill $$limit 2>/dev/null || :; \
	done

.PHONY: tracing
tracing:
	@mkdir -p bin
	cd examples/tracing && $(GO) build -o ../../bin/tracing .

TELEMETRY = $(GO) test -vet=off -count=1 -v ./tests/telemetry -run

# The Collector is a module outside of go.work: nothing else is built with its two hundred
# dependencies.
.PHONY: traces
traces: tracing ## Run examples/tracing against a real OpenTelemetry Collector, and check what it got (it is built first: some minutes once).
	cd examples/tracing/collector && GOWORK=off $(GO) build -o ../../../bin/collector .
	$(TELEMETRY) TestACollector -example $(CURDIR)/bin/tracing -collector $(CURDIR)/bin/collector

# Unpacked, not installed: the installed package starts a Prometheus of its own.
PROMETHEUS = $(firstword $(shell command -v prometheus 2>/dev/null) $(CURDIR)/bin/prometheus/usr/bin/prometheus)
PROMTOOL = $(firstword $(shell command -v promtool 2>/dev/null) $(CURDIR)/bin/prometheus/usr/bin/promtool)
.PHONY: metrics-deps
metrics-deps: ## Unpack Debian's prometheus into ./bin if there is no prometheus or promtool.
	@if [ -x "$(PROMETHEUS)" ] && [ -x "$(PROMTOOL)" ]; then exit 0; fi; \
	echo "make metrics-deps: downloading Debian's package prometheus (about 20 MB) and unpacking it into bin/prometheus; nothing is installed"; \
	mkdir -p bin/prometheus && cd bin/prometheus && \
	{ apt-get download -qq prometheus || { apt-get update -qq </dev/null && apt-get download -qq prometheus; }; } && \
	for package in prometheus_*.deb; do dpkg-deb -x "$$package" . && rm "$$package"; done && [ -x usr/bin/promtool ] || { \
		echo "make metrics-deps: there is still no prometheus: put prometheus and promtool in PATH" >&2; exit 1; \
	}

.PHONY: metrics
metrics: metrics-deps tracing ## Test the alerts, and check on a real Prometheus that every panel of the dashboard has data.
	$(PROMTOOL) check rules docs/grafana/alerts.yaml
	$(PROMTOOL) test rules docs/grafana/alerts_test.yaml
	$(TELEMETRY) TestAPrometheus -example $(CURDIR)/bin/tracing -prometheus $(PROMETHEUS)

# Not in deps: it takes more than a minute to install.
CHROMIUM ?= $(firstword $(shell command -v chromium chromium-browser google-chrome 2>/dev/null) chromium)
.PHONY: web-deps
web-deps:
	@if command -v "$(CHROMIUM)" >/dev/null 2>&1; then exit 0; fi; \
	root() { if [ "$$(id -u)" -eq 0 ]; then "$$@"; else sudo "$$@"; fi; }; \
	echo "make web: installing chromium (about 120 MB)"; \
	root apt-get update -qq </dev/null; \
	root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium </dev/null; \
	command -v "$(CHROMIUM)" >/dev/null 2>&1 || { \
		echo "make web: there is still no Chromium: install it by hand, and name it in CHROMIUM" >&2; exit 1; \
	}

.PHONY: web
web: web-deps ## Look at the page of package web in a real Chromium, which is installed if it is missing (CHROMIUM names another).
	cd tests/web && $(GO) test -vet=off -count=1 $(TESTFLAGS) . -chromium "$(CHROMIUM)"

.PHONY: web-picture
web-picture: web-deps ## Take docs/web.png, a picture of that page.
	cd tests/web && $(GO) test -vet=off -count=1 -run Picture . -chromium "$(CHROMIUM)" -picture $(CURDIR)/docs/web.png

.PHONY: failover-picture
failover-picture: ## Draw docs/failover.svg from the events of one run of examples/failover.
	$(GO) run ./examples/failover -svg docs/failover.svg

.PHONY: trace-picture
trace-picture: tracing ## Draw docs/traces.svg from the spans of one run of examples/tracing.
	bin/tracing -endpoint none -svg docs/traces.svg

.PHONY: cli-picture
cli-picture: deps ## Draw docs/cli.svg from what the command prints on three throwaway servers.
	scripts/recording.sh

.PHONY: fmt
fmt: ## Format all Go files.
	gofmt -s -w .

.PHONY: lint
lint: export GOGC = 400
lint: lint-fmt lint-tidy lint-work lint-systems lint-golangci ## Check formatting, golangci-lint with vet, go.mod and go.work, and build for other systems.

.PHONY: lint-fmt
lint-fmt:
	@bad=$$(gofmt -s -l .); if [ -n "$$bad" ]; then echo "not formatted, run make fmt:"; echo "$$bad"; exit 1; fi

# The systems that README names, except the one that this runs on. No file is for linux/arm64 alone, so it has its
# turn each night.
SYSTEMS ?= darwin/arm64 windows/amd64
.PHONY: lint-systems
lint-systems:
	@for system in $(SYSTEMS); do \
		echo "-- build for $$system"; \
		GOOS=$${system%/*} GOARCH=$${system#*/} $(GO) build . ./election ./spread/... ./web ./quorumlocktest/... ./cmd/quorumlock/... || exit 1; \
	done

# Outside of the workspace: a module must be complete by itself. The command's
# module has no replace directive, because go install refuses a module that has
# one: it is checked in a copy of its go.mod that has.
.PHONY: lint-tidy
lint-tidy:
	$(call each-module,if grep -q '^replace' go.mod || [ "$$module" = github.com/quorumlock/quorumlock ]; then \
			GOWORK=off $(GO) mod tidy -diff; \
		else \
			copy=$$(mktemp -d) && cp go.mod go.sum "$$copy" && \
			$(GO) mod edit -replace=github.com/quorumlock/quorumlock=$(CURDIR) "$$copy/go.mod" && \
			GOWORK=off $(GO) mod tidy -diff -modfile="$$copy/go.mod"; tidy=$$?; rm -rf "$$copy"; [ $$tidy -eq 0 ]; \
		fi)
	cd benchmarks && GOWORK=off $(GO) mod tidy -diff -modfile=newest.mod

# All modules must require the versions that the workspace builds with. Done
# in a copy, because go work sync can only write.
.PHONY: lint-work
lint-work:
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	tar -cf - --exclude ./.git --exclude ./bin . | tar -xf - -C "$$copy"; \
	(cd "$$copy" && $(GO) work sync) || exit 1; \
	status=0; for file in go.mod */go.mod */*/go.mod; do diff -u "$$file" "$$copy/$$file" || status=1; done; \
	if [ $$status -ne 0 ]; then echo "the modules disagree with go.work, run go work sync"; fi; exit $$status

# Each night: make bench-gate builds with these versions, too. golangci-lint vets everything else.
.PHONY: lint-newest
lint-newest: ## Vet the benchmarks with the newest versions of the peers.
	cd benchmarks && GOWORK=off $(GO) vet -modfile=newest.mod ./...

.PHONY: lint-golangci
lint-golangci: tools # all modules in one run, which reads what they share once
	$(GOLANGCI) run --allow-parallel-runners $$($(GO) list -m -f '{{.Dir}}/...')

.PHONY: tools
tools: $(GOLANGCI) ## Install the linter, pinned, into ./bin.

$(GOLANGCI):
	GOBIN=$(CURDIR)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(CURDIR)/bin/golangci-lint $@
