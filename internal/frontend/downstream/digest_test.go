package downstream

import (
	"math/rand/v2"
	"testing"
)

func TestDigest_DoesNotDependOnTheSizeOfReads(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 5*digestBlockBytes+17)
	for i := range text {
		text[i] = byte(random.Uint32())
	}
	var whole digest
	whole.write(text)
	for _, limit := range []int{1000, digestBlockBytes - 1, digestBlockBytes, digestBlockBytes + 1, 3 * digestBlockBytes} {
		var pieces digest
		for rest := text; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(limit))
			pieces.write(rest[:n])
			rest = rest[n:]
		}
		check(t, "sum", pieces.sum(), whole.sum())
	}
}

func TestDigest_DetectsEveryChangedDigit(t *testing.T) {
	text := []byte(document(6000))
	sum := func() uint64 {
		var d digest
		d.write(text)
		return d.sum()
	}
	if len(text) < 3*digestBlockBytes {
		t.Fatal("too short")
	}
	want := sum()
	for i := 0; i < len(text); i += 997 {
		text[i] ^= 1
		check(t, "still the same", sum() == want, false)
		text[i] ^= 1
	}
	check(t, "as before", sum(), want)
	// Two blocks in the other order.
	for i := range digestBlockBytes {
		text[i], text[i+digestBlockBytes] = text[i+digestBlockBytes], text[i]
	}
	check(t, "still the same when swapped", sum() == want, false)
}
