package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// optionsOf parses a command line and builds its options, which reads YAML.
func optionsOf(t *testing.T, args ...string) error {
	t.Helper()
	if args[0] == "store" && !strings.HasPrefix(args[1], "--objstore.config") {
		args = append(args, "--objstore.config=type: FILESYSTEM")
	}
	cli, err := parse(t, args...)
	if err != nil {
		return err
	}
	switch args[0] {
	case "serve":
		_, err = cli.Serve.options()
	case "query":
		_, err = cli.Query.options()
	case "query-frontend":
		_, err = cli.QueryFrontend.options()
	case "sidecar":
		_, err = cli.Sidecar.options()
	case "store":
		_, err = cli.Store.options()
	case "summarize":
		_, err = cli.Summarize.options()
	default:
		t.Fatalf("no options of %s", args[0])
	}
	return err
}

// yamlFlags returns the flags with YAML values, by command.
func yamlFlags(t *testing.T) map[string][]*kong.Flag {
	t.Helper()
	var cli commands
	parser := parserOf(t, &cli)
	flags := map[string][]*kong.Flag{}
	for _, command := range parser.Model.Children {
		for _, flag := range command.Flags {
			if flag.PlaceHolder == "YAML" {
				flags[command.Name] = append(flags[command.Name], flag)
			}
		}
	}
	return flags
}

// Every YAML flag expands environment variables. A variable that is not set is an error.
func TestYAMLFlags_AreSecretAndExpandEnvironment(t *testing.T) {
	const unset = "FERULA_NOT_SET_2"
	t.Setenv("FERULA_SET", "anything")
	dir, n := t.TempDir(), 0
	for command, flags := range yamlFlags(t) {
		for _, flag := range flags {
			n++
			if _, ok := flag.Target.Interface().(secret); !ok {
				t.Errorf("%s --%s is not secret", command, flag.Name)
			}
			file := func(text string) string { return filesIn(t, dir)(command+flag.Name, text) }
			// A YAML comment: its text does not matter, but it is expanded too.
			for _, given := range []func(string) string{
				func(text string) string { return "--" + flag.Name + "=" + text },
				func(text string) string { return "--" + flag.Name + "-file=" + file(text) },
			} {
				if err := optionsOf(t, command, given("# $(FERULA_SET) ${"+unset+"} $"+unset)); err != nil {
					t.Errorf("%s --%s: %v", command, flag.Name, err)
				}
				err := optionsOf(t, command, given("# $("+unset+")"))
				if err == nil || !strings.Contains(err.Error(), unset) || !strings.Contains(err.Error(), "--"+flag.Name) {
					t.Errorf("%s --%s with a name that is not set: %v", command, flag.Name, err)
				}
			}
			if err := optionsOf(t, command, "--"+flag.Name+"-file="+filepath.Join(dir, "missing")); err == nil || !strings.Contains(err.Error(), flag.Name+"-file") {
				t.Errorf("%s --%s-file that is missing: %v", command, flag.Name, err)
			}
		}
	}
	if n < 9 {
		t.Errorf("only %d flags", n)
	}
}

func TestCommandLine_SecretsAreMasked(t *testing.T) {
	args := []string{
		"ferula", "sidecar", "--prometheus.url=http://eve:hidden@h/", "--prometheus.http-client", "basic_auth: hidden", "--objstore.config=a=hidden",
		"--tracing.config=hidden", "--tsdb.path=shown", "--log.level", "debug", "--prometheus.url", "http://eve:hidden@h:1:2/",
	}
	var cli commands
	parser := parserOf(t, &cli)
	k, err := parser.Parse(args[1:])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ferula", "sidecar", "--prometheus.url=http://eve:xxxxx@h/", "--prometheus.http-client", "<secret>", "--objstore.config=<secret>",
		"--tracing.config=<secret>", "--tsdb.path=shown", "--log.level", "debug", "--prometheus.url", "<secret>",
	}
	if got := commandLine(k, args); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	values := flagValues(k)
	for name, want := range map[string]string{"prometheus.http-client": "<secret>", "tracing.config": "<secret>", "objstore.config": "<secret>", "tsdb.path": "shown", "prometheus.url": "<secret>"} {
		if values[name] != want {
			t.Errorf("--%s is shown as %q", name, values[name])
		}
	}
	for name, value := range values {
		if strings.Contains(value, "hidden") {
			t.Errorf("--%s is shown as %q", name, value)
		}
	}
}

// A flag without effect may have a secret nevertheless, because the replaced program used it.
func TestCommandLine_SecretsOfFlagsWithoutEffectAreMasked(t *testing.T) {
	args := []string{"ferula", "query", "--alert.query-url=http://eve:hidden@h/", "--request.logging-config", "hidden", "--web.prefix-header=shown"}
	var cli commands
	k, err := parserOf(t, &cli).Parse(args[1:])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ferula", "query", "--alert.query-url=http://eve:xxxxx@h/", "--request.logging-config", "<secret>", "--web.prefix-header=shown"}
	if got := commandLine(k, args); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	values := flagValues(k)
	for name, want := range map[string]string{"alert.query-url": "http://eve:xxxxx@h/", "request.logging-config": "<secret>", "web.prefix-header": "shown"} {
		if values[name] != want {
			t.Errorf("--%s is shown as %q", name, values[name])
		}
	}
}

func TestSecret_EmptyIsShownAsEmpty(t *testing.T) {
	if secret("").String() != "" || secretURL("http://h:1/x").String() != "http://h:1/x" || secretURL("").String() != "" || secretURL("%zz").String() != "%zz" {
		t.Error("an empty secret or a URL without a password is not shown as it is")
	}
}

func TestReceiveFlags_BudgetMustHoldOneBody(t *testing.T) {
	for arg, want := range map[string]string{
		"--receive.max-bytes-in-flight=63MB":  "64MB",
		"--receive.max-bytes-in-flight=65MB":  "--profiles.max-request-size",
		"--profiles.max-request-size=255MB":   "--profiles.max-request-size",
		"--profiles.limit.profile-size=128MB": "--profiles.limit.profile-size",
		"--receive.body-timeout=999ms":        "--receive.body-timeout",
	} {
		if err := optionsOf(t, "serve", arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
	for _, args := range [][]string{{"--receive.max-bytes-in-flight=66MB"}, {"--no-profiles.enable-receiver", "--receive.max-bytes-in-flight=64MB"}} {
		if err := optionsOf(t, append([]string{"serve"}, args...)...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}
