package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/alecthomas/kong"
	"github.com/alecthomas/units"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
)

// duration is a flag value in Prometheus' duration format: 15d, 1h30m. Go's format, such
// as 1.5h, is accepted too, because some flags of Thanos use it.
type duration model.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := model.ParseDuration(string(text))
	if err != nil {
		if other, otherErr := time.ParseDuration(string(text)); otherErr == nil && other >= 0 {
			parsed, err = model.Duration(other), nil
		}
	}
	*d = duration(parsed)
	return err
}

// zeroIsNone converts a duration flag to an option. In the flag 0 means no time. In options a
// negative duration means no time, and 0 means the default.
func zeroIsNone(d duration) time.Duration {
	if d == 0 {
		return -1
	}
	return time.Duration(d)
}

// String implements fmt.Stringer, for /api/v1/status/flags.
func (d duration) String() string { return model.Duration(d).String() }

// size is a flag value in bytes: 512MB, 1GB (powers of two, as in Prometheus).
type size int64

// sizeMax is the limit of a size. Sums and small multiples of sizes do not overflow.
const sizeMax = 1 << 60

// UnmarshalText implements encoding.TextUnmarshaler. All these flags are limits, so a negative value is an error.
func (s *size) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*s = 0
		return nil
	}
	if strings.HasPrefix(string(text), "-") {
		return fmt.Errorf("must not be negative: %q", text)
	}
	parsed, err := units.ParseBase2Bytes(string(text))
	if err != nil || parsed < 0 || parsed > sizeMax { // 8EB overflows without an error
		return fmt.Errorf("not a size of at most 1EB with a unit, such as 512MB: %q", text)
	}
	*s = size(parsed)
	return nil
}

// String implements fmt.Stringer, for /api/v1/status/flags.
func (s size) String() string { return units.Base2Bytes(s).String() }

// decodeNumber parses the value of a flag of type int or int64. As in Prometheus, 5e7 is
// a valid value. All these flags are limits or counts, so a negative value is an error.
// Only a negative number of retries is accepted, because Thanos reads it as 0.
func decodeNumber(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		float, ferr := strconv.ParseFloat(text, 64)
		if ferr != nil || float != math.Trunc(float) || math.Abs(float) > 1<<53 {
			return fmt.Errorf("not a whole number: %q", text)
		}
		n = int64(float)
	}
	if n < 0 && !strings.HasSuffix(ctx.Value.Name, "max-retries-per-request") {
		return fmt.Errorf("must not be negative: %q", text)
	}
	target.SetInt(n)
	return nil
}

// checkBounds returns an error for each flag whose value is below its tag min or above its tag max.
func checkBounds(flags []*kong.Flag) (err error) {
	for _, f := range flags {
		low, high := f.Tag.Get("min"), f.Tag.Get("max")
		if (low == "" || f.Target.Int() >= bound(f, low)) && (high == "" || f.Target.Int() <= bound(f, high)) {
			continue
		}
		limits := "at least " + low
		switch {
		case low == "":
			limits = "at most " + high
		case high != "":
			limits = "between " + low + " and " + high
		}
		err = errors.Join(err, fmt.Errorf("--%s=%v must be %s", f.Name, f.Target, limits))
	}
	return err
}

// bound returns the number of a tag, which is written as a value of the flag.
func bound(f *kong.Flag, text string) int64 {
	value := reflect.New(f.Target.Type())
	if err := f.Mapper.Decode(&kong.DecodeContext{Value: f.Value, Scan: kong.ScanAsType(kong.FlagValueToken, text)},
		value.Elem()); err != nil {
		panic(fmt.Sprintf("tag of --%s: %v", f.Name, err))
	}
	return value.Elem().Int()
}

// logLevel is the severity of a log message, in lower case.
type logLevel string

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *logLevel) UnmarshalText(text []byte) error {
	if err := promslog.NewLevel().Set(string(text)); err != nil {
		return fmt.Errorf("must be debug, info, warn or error: %q", text)
	}
	*l = logLevel(strings.ToLower(string(text)))
	return nil
}

// logFlags are the flags of every command about its log.
type logFlags struct {
	Level  logLevel `name:"log.level" default:"info"`
	Format string   `name:"log.format" enum:"logfmt,json" default:"logfmt"`
}

// memoryFlags set GOMEMLIMIT, so that the process stays within its container's memory.
type memoryFlags struct {
	Auto  bool    `name:"auto-gomemlimit" default:"true" negatable:""`
	Ratio float64 `name:"auto-gomemlimit.ratio" default:"0.9"`
}

// apply sets GOMEMLIMIT. With an interval it is set again when the limit of the container
// has changed, until ctx is canceled.
func (f memoryFlags) apply(ctx context.Context, logger *slog.Logger, refresh time.Duration) {
	if !f.Auto {
		return
	}
	provider := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)
	options := []memlimit.Option{memlimit.WithRatio(f.Ratio), memlimit.WithProvider(provider), memlimit.WithLogger(logger)}
	if refresh > 0 {
		options = append(options, memlimit.WithRefreshInterval(ctx, refresh))
	}
	if _, err := memlimit.Set(options...); err != nil {
		logger.Warn("Failed to set GOMEMLIMIT", "err", err)
	}
}

func (f memoryFlags) Validate() error {
	if !(f.Ratio > 0 && f.Ratio <= 1) {
		return fmt.Errorf("--auto-gomemlimit.ratio=%g must be greater than 0 and at most 1", f.Ratio)
	}
	return nil
}

// setGOMAXPROCS sets GOMAXPROCS to the number of CPUs, unless auto is set or the
// environment has GOMAXPROCS. Go's default would follow the CPU quota of the container.
func setGOMAXPROCS(auto bool) {
	if !auto && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.NumCPU())
	}
}
