package cache

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// samples returns the text of a run.
func samples(firstMS, stepMS int64, values ...string) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		ms := firstMS + int64(i)*stepMS
		fmt.Fprintf(&b, "[%d", ms/1000)
		if ms%1000 != 0 {
			fmt.Fprintf(&b, ".%03d", ms%1000)
		}
		fmt.Fprintf(&b, `,"%s"]`, v)
	}
	return b.String()
}

func repeat(value string, n int) []string {
	return strings.Split(strings.Repeat(value+" ", n-1)+value, " ")
}

// texts that must survive a round trip, by their special case.
func texts() map[string]string {
	wrap := func(runs ...string) string {
		return `{"metric":{"a":"b"},"values":[` + strings.Join(runs, `]},{"metric":{"a":"c"},"values":[`) + "]}"
	}
	return map[string]string{
		"nothing":                               "",
		"one byte":                              "[",
		"brackets":                              strings.Repeat("[", 300),
		"no run":                                strings.Repeat("hello, world ", 30),
		"integers":                              wrap(samples(1.7e12, 15e3, repeat("12345", 40)...), samples(1.7e12, 15e3, repeat("7", 40)...)),
		"every length":                          wrap(samples(0, 1000, lengths()...)),
		"every length, raw":                     wrap(samples(0, 1000, strings.Fields(strings.ReplaceAll(strings.Join(lengths(), " "), "1", "e"))...)),
		"special values":                        wrap(samples(1.7e12, 60e3, "NaN", "+Inf", "-Inf", "-0", "0", "1e-07", "5e-324", "1e+21", "NaN", "NaN", "-0.1", "1")),
		"empty values":                          wrap(samples(1.7e12, 60e3, "1", "", "2", "", "", "3")),
		"milliseconds":                          wrap(samples(10, 1, repeat("1", 2100)...)),
		"seconds grow longer":                   wrap(samples(999999990e3, 1000, repeat("1", 60)...)),
		"a gap":                                 wrap(samples(1.7e12, 15e3, "1", "2", "3") + "," + samples(1.7e12+300e3, 15e3, repeat("4", 30)...)),
		"steps that differ":                     wrap(samples(1.7e12, 15e3, "1", "2", "3"), samples(1.7e12, 60e3, "1", "2", "3"), samples(1.7e12, 15e3, "1", "2", "3")),
		"backwards":                             wrap(samples(1.7e12, -15e3, "1", "2", "3", "4")),
		"the same time":                         wrap(samples(1.7e12, 0, "1", "2", "3", "4")),
		"single samples":                        strings.Repeat(`{"metric":{},"value":[1700000000.123,"42"]},`, 50),
		"very late":                             wrap(samples(999999999999000, 1000, "1", "2", "3")),
		"later than that":                       wrap("[1000000000000,\"1\"],[1000000000001,\"1\"]" + strings.Repeat(" ", 99)),
		"leading zeros":                         "[[00,\"1\"],[01,\"2\"],[02,\"3\"]" + strings.Repeat(" ", 99),
		"milliseconds of zero":                  "[[1.000,\"1\"],[2.000,\"2\"]" + strings.Repeat(" ", 99),
		"short fraction":                        "[[1.5,\"1\"],[2.5,\"2\"]" + strings.Repeat(" ", 99),
		"negative times":                        "[[-15,\"1\"],[0,\"2\"],[15,\"3\"]" + strings.Repeat(" ", 99),
		"long numbers":                          wrap(samples(0, 1000, strings.Repeat("1", 33), "2", strings.Repeat("3", 80), "4")),
		"quotes and brackets":                   wrap(samples(0, 1000, `1"]`, `2\"`, `3]`, `[4`, `5`)),
		"spaces":                                strings.ReplaceAll(wrap(samples(0, 1000, repeat("1", 30)...)), ",", ", "),
		"histograms":                            `"histograms":[` + strings.Repeat(`[1700000000,{"count":"5","sum":"18.4","buckets":[[3,"-0.001","0.001","0"],[0,"1","2","5"]]}],`, 20),
		"characters at the edge of the sixteen": wrap(samples(0, 1000, "*+,-./0123456789", ")", ":", "*", "9", "(1", ";1", "12345678)", "12345678:")),
		"cut in a run":                          wrap(samples(1.7e12, 15e3, repeat("12345", 40)...))[:500],
		"cut in a time":                         wrap(samples(1.7e12, 15e3, repeat("12345", 40)...))[:37],
	}
}

// lengths returns numbers of 1 to 32 digits, each twice.
func lengths() (values []string) {
	for n := 1; n <= valueMax; n++ {
		values = append(values, strings.Repeat("1234567890", 4)[:n], strings.Repeat("9876543210", 4)[:n])
	}
	return values
}

func repack(t testing.TB, p *packer, u *unpacker, text []byte) []byte {
	t.Helper()
	packed := p.appendPacked(nil, text)
	back := bytes.Repeat([]byte{0xEE}, len(text)+16)
	err := u.join(back[:len(text)], packed)
	check(t, err == nil, "unpack: %v", err)
	check(t, bytes.Equal(back[:len(text)], text), "came back as\n%q\ninstead of\n%q", back[:len(text)], text)
	check(t, bytes.Equal(back[len(text):], bytes.Repeat([]byte{0xEE}, 16)), "wrote behind the end")
	return packed
}

func TestPack_RoundTrip(t *testing.T) {
	var p packer
	var u unpacker
	for name, text := range texts() {
		repack(t, &p, &u, []byte(text))
		for cut := range min(len(text), 400) { // blocks begin and end anywhere
			repack(t, &p, &u, []byte(text[cut:]))
			repack(t, &p, &u, []byte(text[:len(text)-cut]))
		}
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestUnpack_IsIndependentOfEarlierBlocks(t *testing.T) {
	long := []byte(samples(0, 1000, repeat("1", 3*stepTimesMax)...))
	later := []byte(samples(1000*(stepTimesMax-10), 1000, repeat("2", 100)...))
	var p packer
	var u unpacker
	for _, text := range [][]byte{long, later, long[:1000], later, []byte(samples(5, 77, repeat("3", 100)...)), later, long} {
		repack(t, &p, &u, text)
		repack(t, new(packer), &u, text)
		repack(t, &p, new(unpacker), text)
	}
	check(t, len(u.stepTimes.times) <= stepTimesMax && len(p.stepTimes.times) <= stepTimesMax, "%d and %d times are prepared", len(u.stepTimes.times), len(p.stepTimes.times))
}

func TestPack_CompressesResponses(t *testing.T) {
	var p packer
	var u unpacker
	for kind, want := range map[string]float64{"rate": 3.2, "counter": 5, "gauge": 10, "one": 13, "percent": 5, "mix": 4.5} {
		text := response(kind, 24, 161)
		packed := repack(t, &p, &u, text)
		got := float64(len(text)) / float64(len(packed))
		check(t, got >= want, "%s: %d bytes packed into %d: %.2f, expected %.2f", kind, len(text), len(packed), got, want)
	}
}

func TestUnpack_DamagedBlockIsRejectedOrHasTheRightLength(t *testing.T) {
	var p packer
	var u unpacker
	text := response("mix", 4, 20)
	packed := p.appendPacked(nil, text)
	out := make([]byte, len(text))
	for i := range packed {
		for _, x := range []byte{1, 0x80, 0xFF} {
			bad := bytes.Clone(packed)
			bad[i] ^= x
			_ = u.join(out, bad) // the part's checksum detects the fault; join must only not panic
		}
		check(t, u.join(out, packed[:i]) != nil, "cut at %d: no error", i)
	}
	for _, n := range []int{0, 1, len(text) - 1} {
		check(t, u.join(out[:n], packed) != nil, "unpacked into %d bytes", n)
	}
	check(t, u.join(append(out, 0), packed) != nil, "unpacked into one more byte")
}

func FuzzPackRoundTrip(f *testing.F) {
	for _, text := range texts() {
		f.Add([]byte(text))
	}
	var p packer
	var u unpacker
	f.Fuzz(func(t *testing.T, text []byte) {
		repack(t, &p, &u, text) // both have seen other texts
		repack(t, new(packer), &u, text)
		repack(t, &p, new(unpacker), text)
	})
}

func FuzzUnpackAnything(f *testing.F) {
	var p packer
	for _, text := range texts() {
		f.Add(p.appendPacked(nil, []byte(text)), len(text))
	}
	var u unpacker
	f.Fuzz(func(t *testing.T, packed []byte, n int) {
		if n < 0 || n > blockBytesMax {
			return
		}
		out := bytes.Repeat([]byte{0xEE}, n+8)
		_ = u.join(out[:n], packed)
		check(t, bytes.Equal(out[n:], bytes.Repeat([]byte{0xEE}, 8)), "wrote behind the end")
	})
}

func TestUnpack_DoesNotAllocate(t *testing.T) {
	var p packer
	var u unpacker
	text := response("mix", 20, 161)[:blockBytes/2]
	packed := p.appendPacked(nil, text)
	out := make([]byte, len(text))
	n := testing.AllocsPerRun(20, func() {
		if u.join(out, packed) != nil {
			t.Fatal("corrupt")
		}
	})
	check(t, n == 0, "%v allocations", n)
}

func TestParseTime(t *testing.T) {
	for text, want := range map[string]int64{`[0,"`: 0, `[1,"`: 1000, `[1.001,"`: 1001, `[1.010,"`: 1010, `[1.100,"`: 1100, `[1700000000.999,"`: 1700000000999} {
		got, ok := parseTime(append([]byte(text), make([]byte, timeMax)...))
		check(t, ok && got == want, "%s: %d, %t, want %d", text, got, ok, want)
	}
	for _, text := range []string{`[1.000,"`, `[01,"`, `[,"`, `[1.1,"`, `[1.0a1,"`, `[-1,"`, `{1,"`, `[1;"`, `[1,x`, `[9999999999999,"`} {
		got, ok := parseTime(append([]byte(text), make([]byte, timeMax)...))
		check(t, !ok, "%s: %d", text, got)
	}
}
