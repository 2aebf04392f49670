package main

import (
	_ "go.opentelemetry.io/collector/confmap/provider/fileprovider"
	_ "go.opentelemetry.io/collector/exporter/debugexporter"
	_ "go.opentelemetry.io/collector/otelcol"
	_ "go.opentelemetry.io/collector/receiver/otlpreceiver"
	_ "go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func main() {}
