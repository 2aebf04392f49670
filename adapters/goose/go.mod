module github.com/quorumlock/quorumlock/adapters/goose

go 1.25.0

replace (
	github.com/quorumlock/quorumlock => ../../
	github.com/quorumlock/quorumlock/quorumlocktest => ../../quorumlocktest
)

require (
	github.com/go-sql-driver/mysql v1.9.3
	github.com/mattn/go-sqlite3 v1.14.53
	github.com/pressly/goose/v3 v3.27.0
	github.com/quorumlock/quorumlock v0.1.0
	github.com/quorumlock/quorumlock/quorumlocktest v0.1.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/mfridman/interpolate v0.0.2 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	github.com/sethvargo/go-retry v0.3.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.opentelemetry.io/otel v1.46.0 // indirect
	go.opentelemetry.io/otel/metric v1.46.0 // indirect
	go.opentelemetry.io/otel/trace v1.46.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
