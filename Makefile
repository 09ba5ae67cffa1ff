# Everything a person or CI does with this repository. `make run` and `make test`
# need only Go; `make ui` needs node, `make bench` and `make interop` build their
# peers first.

GO ?= go
export GOTOOLCHAIN = local
MODULES = . ./metrics ./promjson
HERE = github.com/ferula-io/ferula

.PHONY: run build test race check bench ui ui-check browser interop generate tidy fuzz

run:
	$(GO) run ./cmd/ferula serve

build:
	$(GO) build -o bin/ferula ./cmd/ferula

# Every test that needs only Go. Tests that need a peer, a server or a browser say
# so in one line and are skipped; `make interop` and .ci/run run them.
test:
	$(GO) test ./... ./metrics/... ./promjson/...

race:
	$(GO) test -race -tags invariants ./... ./metrics/... ./promjson/...

check:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(GO) vet ./... ./metrics/... ./promjson/...
	$(GO) vet -tags invariants ./... ./metrics/... ./promjson/...
	cd bench && GOWORK=off $(GO) vet ./...
	$(GO) test ./test/house/
	$(GO) build -o /dev/null ./cmd/ferula

# make bench AREA=api
bench:
	cd bench && GOWORK=off $(GO) run ./cmd/bench $(if $(AREA),-area=$(AREA)) $(BENCHFLAGS)

# The page: built files are committed, so only who changes it needs node.
ui:
	cd ui && npm ci --no-audit --no-fund && npm run build

ui-check: ui
	git diff --exit-code --stat -- internal/ui/dist

# The page in a real Chromium, against a server of its own.
browser:
	test/browser.sh

# Tests against real peers: Prometheus, Thanos, versitygw, node_exporter, Redis, memcached.
interop:
	FERULA_TEST_PEERS=1 $(GO) test -count=1 -v -run Peer ./test/... ./internal/frontend/...
	cd bench && FERULA_TEST_PEERS=1 GOWORK=off $(GO) test -count=1 -v -run Peer ./metricsdiff/

generate:
	$(GO) generate ./... ./metrics/... ./promjson/...

# go.work ties the modules at v0.0.0, which `go mod tidy` alone would look for in
# the proxy: give it a replace for the moment of the tidying.
tidy:
	cd promjson && GOWORK=off $(GO) mod tidy
	cd metrics && GOWORK=off $(GO) mod tidy
	$(GO) mod edit -replace $(HERE)/promjson=./promjson -replace $(HERE)/metrics=./metrics
	GOWORK=off $(GO) mod tidy; status=$$?; \
	$(GO) mod edit -dropreplace $(HERE)/promjson -dropreplace $(HERE)/metrics; exit $$status

# Thirty seconds of fuzzing for every fuzz test.
fuzz:
	@for module in $(MODULES); do (cd $$module && for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime 30s $$pkg || exit 1; done; done) || exit 1; done
