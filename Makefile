# Everything that a developer or CI does with this repository. `make run` and `make test`
# need only Go. `make ui` needs node; `make bench` and `make interop` build their
# peers first; linters and generators are pinned in tools/go.mod.

# One failure hides no other: a target with several parts has them as prerequisites, and --keep-going runs those that are
# left. A recipe of several lines ends at the first that fails, so each of its lines needs those before.
MAKEFLAGS += --keep-going

GO ?= go
# .ci/run sets test/gotest here, which records the tests that are skipped.
GOTEST ?= $(GO) test
export GOTOOLCHAIN = local
# Compiler and linker may use memory instead of collecting garbage, for a tenth less CPU. Programs and tests do not get
# this GOGC, and what is built is the same.
export GOFLAGS := $(shell $(GO) env GOFLAGS) '-toolexec=env GOGC=400'
PACKAGES = ./... ./metrics/... ./metrics/promcompat/... ./promjson/...
HERE = github.com/ferula-io/ferula
FUZZTIME ?= 30s
FUZZMINIMIZE ?= 5s
FUZZ_EXECS ?= 10000000
TOOLS = $(CURDIR)/bin/tools

.PHONY: api api-diff bench bench-test browser build chart chart-check check clouds fuzz fuzz-long fuzz-short generate generated gofmt golden help house interop \
	interop-clouds interop-metricsdiff interop-processes jsontext judges judges-directory judges-operator judges-suites linked linked-clouds lint lint-packages load mutants pictures plain-packages \
	plain-scripts plain-tests plots prove race race-processes race-promql race-tests race-units release release-check run soak tags test tidied tidy \
	tools-tests ui ui-check vet vet-modules vet-systems vet-untagged vuln

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

run: ## run ferula serve without flags
	$(GO) run ./cmd/ferula serve

build: ## build bin/ferula
	$(GO) build -o bin/ferula ./cmd/ferula

tags: api-diff house ## check that HEAD is a release, and tag it and the public modules: make tags VERSION=v0.1.0
	deploy/tags.sh "$(VERSION)"

release: ## archives, packages, images, chart, bills of materials and checksums of all PLATFORMS in bin/release, signed by KEY
	PLATFORMS="$(PLATFORMS)" KEY="$(KEY)" deploy/release.sh

release-check: chart-check ## as root: install the packages of bin/release in a copy of this system, and check the chart and the checksums
	unshare --mount deploy/check.sh

# Helm and nfpm are pinned in tools/pack/go.mod; only these targets and `make release` compile them.
chart: ## render the chart again: cmd/ferula/testdata/chart
	cd tools/pack && GOWORK=off $(GO) build -o $(TOOLS)/helm helm.sh/helm/v4/cmd/helm
	deploy/chart.sh

chart-check: chart ## fail if the rendered chart is not current
	git diff --exit-code --stat -- cmd/ferula/testdata/chart

# Tests that need a peer, a server or a browser are skipped with one line of reason;
# `make interop`, `make browser` and .ci/run run them.
# Tests of whole processes come first: they wait more than they compute, so one more package is tested at a time than there
# are cores. `make check` vets every package; these targets do not.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
TEST = $(GOTEST) -vet=off -p $$(($(CORES) + 1)) -parallel $$((2 * $(CORES)))
RACED = $(TEST) -race -tags invariants
# Of test/promql, `make race-promql` runs a part. test/house reads files, and the programs that test/outside builds have no race detector.
PROCESSES = $$($(GO) list ./test/... | grep -vE '/test/(promql|house|outside)$$')
UNITS = $$($(GO) list $(PACKAGES) | grep -v /test/)
# having returns the packages with a file that has the pattern.
having = $$(grep -rlE --include='*.go' '$(1)' cmd internal metrics promjson | xargs -n1 dirname | sort -u | sed 's|^|./|')
# Of these, the code or the tests are others with the race detector or with invariants.
DIFFERENT = $(call having,raceEnabled|invariant\.Enabled|"-race")

# RACE=1 needs a C compiler.
ifdef RACE
test: race-tests plain-tests
else
test: ## every test that needs only Go; with RACE=1, these with the race detector and invariants, and without them only what they change
	$(TEST) -timeout 25m ./test/... $(PACKAGES)
endif

# One test of test/e2e runs all of its scripts without the race detector only.
plain-tests: plain-packages plain-scripts

plain-packages:
	$(TEST) -timeout 25m ./test/house ./test/outside ./test/promql $(DIFFERENT)

plain-scripts:
	$(TEST) -timeout 25m ./test/e2e -run 'TestQuery_PrometheusScriptsPassOverTheStoreAPI'

race: race-tests race-promql ## every test of packages and processes, with the race detector and invariants

# Whole processes are slower under the race detector, not different: test/e2e waits for events. Meanwhile units are tested.
race-tests:
	GORACE=halt_on_error=1 $(RACED) -timeout 40m $(PROCESSES) $(UNITS)

race-units:
	$(RACED) -timeout 25m $(UNITS)

race-processes:
	GORACE=halt_on_error=1 $(RACED) -timeout 40m $(PROCESSES)

race-promql:
	$(RACED) -short ./test/promql -promql.queries=100

# deploy/release.sh ships what is built with this tag.
clouds: ## tests of the packages that -tags clouds changes, and of cmd/ferula, with the tag
	$(TEST) -tags clouds -timeout 25m ./cmd/ferula $(call having,^//go:build .*clouds)

soak: ## half an hour of test/sim, a million random queries of PromQL, a simulated week of profiles: docs/perf/soak.md
	test/soak.sh docs/perf/soak.md

prove: ## the simulator finds each fault of test/sim/faults
	test/sim/prove.sh

# Of what another operating system's packages are compiled to, vet reads only the types: the compiler need not optimize.
TYPESONLY = '-gcflags=all=-N -l -dwarf=false'

check: gofmt vet vet-untagged vet-systems vet-modules jsontext house linked linked-clouds ## gofmt, vet of every module, house rules, the example that needs an experiment, and the build of ferula

gofmt:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt-ed: $$unformatted"; exit 1; }

vet:
	$(GO) vet -tags invariants,clouds $(PACKAGES)

vet-untagged:
	$(GO) vet $(call having,^//go:build !(clouds|invariants))

vet-systems:
	status=0; for os in darwin windows freebsd; do \
		GOOS=$$os $(GO) vet $(TYPESONLY) ./metrics/... ./metrics/promcompat/... ./promjson/... || status=1; \
	done; exit $$status

vet-modules:
	status=0; for module in bench bench/streams bench/thanoscodec test/clients/go test/judges tools; do \
		(cd $$module && GOWORK=off $(GO) vet ./...) || status=1; \
	done; exit $$status

jsontext:
	GOEXPERIMENT=jsonv2 $(GOTEST) -vet=off -run Example_jsontext ./promjson

house:
	$(GOTEST) -vet=off ./test/house/

linked:
	$(GO) build -o /dev/null ./cmd/ferula

linked-clouds:
	$(GO) build -tags clouds -o /dev/null ./cmd/ferula

lint: lint-packages tools-tests ## staticcheck, errcheck, errorlint and gosec

lint-packages:
	cd tools && GOWORK=off $(GO) build -o $(TOOLS)/lint ./lint
	GOGC=400 GOMEMLIMIT=16GiB $(TOOLS)/lint $(PACKAGES)

tools-tests:
	cd tools && GOWORK=off $(GOTEST) -vet=off ./apidiff ./image ./licenses ./lint ./sbom

# The database of vulnerabilities is fetched from the network.
vuln: ## known vulnerabilities in linked packages
	cd tools && GOWORK=off $(GO) build -o $(TOOLS)/govulncheck golang.org/x/vuln/cmd/govulncheck
	$(TOOLS)/govulncheck $(PACKAGES)

bench: ## measure against the peers: make bench AREA=api
	cd bench && GOWORK=off $(GO) run ./cmd/bench $(if $(AREA),-area=$(AREA)) $(BENCHFLAGS)

plots: ## draw the plots of docs/perf from bench/RESULTS.md again
	cd bench && GOWORK=off $(GO) run ./cmd/plot

load: ## an hour of load on serve, query and query-frontend; everything is requested back: docs/perf/soak.md
	cd bench && GOWORK=off $(GO) run ./cmd/load -out ../docs/perf/soak.md $(LOADFLAGS)

bench-test: ## tests of the bench module, which compare bytes with the peers' libraries
	cd bench && GOWORK=off $(TEST) ./...

ui: ## build the page into internal/httpapi/ui/dist; needed only after a change of ui/
	cd ui && npm ci --no-audit --no-fund && npm run build

ui-check: ui ## fail if the committed page is not current
	git diff --exit-code --stat -- internal/httpapi/ui/dist

browser: ## the page in Chromium, against a server of its own
	test/browser.sh

pictures: ## make the pictures of README.md again, in Chromium; nothing else writes them
	rm -rf bin/pictures
	SCREENSHOTS=$(CURDIR)/bin/pictures ONLY="pictures of the README" test/browser.sh && $(GO) run ./test/pictures bin/pictures docs/img

interop: interop-processes interop-clouds interop-metricsdiff ## tests against real peers: Prometheus, Thanos, Alertmanager, versitygw, Azurite, fake-gcs-server, node_exporter, Redis, memcached

interop-processes:
	FERULA_TEST_PEERS=1 $(TEST) -count=1 -timeout 40m -v -run Peer ./cmd/... ./test/... ./internal/frontend/... ./internal/thanos/gateway/... ./internal/promql/backtest

interop-clouds:
	FERULA_TEST_PEERS=1 $(TEST) -tags clouds -count=1 -v -run 'Open|Peer' ./internal/bucket/

interop-metricsdiff:
	cd bench && FERULA_TEST_PEERS=1 GOWORK=off $(TEST) -count=1 -v -run Peer ./metricsdiff/

judges: judges-operator judges-directory judges-suites ## outside judges that take too long for CI: prometheus-operator's own code, a Prometheus with long-term support, suites of others (docs/judges.md)

judges-operator:
	cd test/operator && GOWORK=off $(GO) run . -o ../e2e/testdata/operator
	@changed=$$(git status --porcelain -- test/e2e/testdata/operator); test -z "$$changed" || { echo "not current: $$changed"; exit 1; }
	$(TEST) -count=1 -run TestOperator ./test/e2e

judges-directory:
	test/peers/build.sh prometheus-3.5
	$(TEST) -count=1 -v -run TestPeerPrometheus_DataFolder ./test/e2e

judges-suites: build
	test/judges/judges.sh $(CURDIR)/docs/judges.md

golden: ## capture the golden bytes of test/e2e/testdata/golden again, from the peers and SDKs
	FERULA_TEST_PEERS=1 $(GO) test -vet=off -count=1 -timeout 40m ./test/e2e -run 'Peer.*Golden|Golden_Profile' -golden

generate: ## generate Go code from .proto files and tables, docs/ops/flags.md and metrics.md
	status=0; \
	(cd tools && GOWORK=off $(GO) run ./protogen ..) || status=1; \
	(cd promjson && $(GO) generate ./...) || status=1; \
	$(GO) test -vet=off ./cmd/ferula -count=1 -run TestFlagsDoc_IsCurrent -update || status=1; \
	$(GO) test -vet=off ./internal/app -count=1 -run TestMetricsDoc_IsCurrent -update || status=1; \
	exit $$status

generated: generate ## fail if the committed generated code is not current
	git diff --exit-code --stat -- '*.pb.go' promjson/tables.go docs/ops/flags.md docs/ops/metrics.md

api: ## write the exported names of the public modules to their testdata/api.txt
	$(GO) test -vet=off ./test/house -count=1 -run TestAPI -update

# VERSION=v0.2.0 also fails if that version must not have such changes.
api-diff: ## changes of exported names since the last tags of the public modules; fails if CHANGELOG.md does not name them
	cd tools && GOWORK=off $(GO) run ./apidiff -root .. $(if $(VERSION),-version=$(VERSION))

# go.work ties the modules at v0.0.0. `go mod tidy` ignores workspaces and would look
# for that version in the module proxy: it gets a replace while it runs.
tidy: ## tidy every go.mod
	status=0; for module in promjson metrics metrics/promcompat tools; do \
		(cd $$module && GOWORK=off $(GO) mod tidy) || status=1; \
	done; \
	$(GO) mod edit -replace $(HERE)/promjson=./promjson -replace $(HERE)/metrics=./metrics || status=1; \
	GOWORK=off $(GO) mod tidy || status=1; \
	$(GO) mod edit -dropreplace $(HERE)/promjson -dropreplace $(HERE)/metrics || status=1; \
	exit $$status

tidied: tidy ## fail if a committed go.mod is not tidy
	git diff --exit-code --stat -- '*go.mod' '*go.sum'

fuzz: ## fuzz every target for FUZZTIME (30s)
	FUZZMINIMIZE=$(FUZZMINIMIZE) test/fuzz.sh $(FUZZTIME)

fuzz-short: ## fuzz every target for 2 seconds
	FUZZMINIMIZE=1s test/fuzz.sh 2s

# After an interruption the next run begins with the interrupted target. FUZZPACKAGES="./promjson/..." fuzzes these packages only.
fuzz-long: ## fuzz every target until docs/perf/fuzz.tsv counts FUZZ_EXECS (10,000,000) executions of it
	FUZZMINIMIZE=$(FUZZMINIMIZE) test/fuzz.sh -t docs/perf/fuzz.tsv $(FUZZ_EXECS)x $(FUZZPACKAGES)

# MUTANTS="-seed 2 -each 10 ./internal/httpapi" runs others.
mutants: ## which faults in production code the tests notice
	$(GO) run ./test/mutants -min 92 $(or $(MUTANTS),-seed 1 -each 3)
