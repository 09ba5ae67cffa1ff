package profiles

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestParseID(t *testing.T) {
	const plain = "000102030405060708090a0b0c0d0e0f"
	for _, text := range []string{plain, "00010203-0405-0607-0809-0a0b0c0d0e0f"} {
		if id, err := ParseID(text); err != nil || id[0] != 0 || id[1] != 1 || id[15] != 15 {
			t.Errorf("%s: %v, %v", text, id, err)
		}
	}
	for _, text := range []string{
		"", plain[1:], plain + "0", "0001020x" + plain[8:],
		"00010203_0405-0607-0809-0a0b0c0d0e0f", "00010203-0405_0607-0809-0a0b0c0d0e0f", "00010203-0405-0607_0809-0a0b0c0d0e0f", "00010203-0405-0607-0809_0a0b0c0d0e0f",
		"aaaaaaaaaaaaa-aaaa-aaaa-aaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaa-bbbb-cccc-",
	} {
		if id, err := ParseID(text); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%q: %v, %v", text, id, err)
		}
	}
}

func TestID_TextHasTheDigitsOfEveryByte(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 1000 {
		var id ID
		for j := range id {
			id[j] = byte(r.Uint32())
		}
		id[i%16] = byte(i)
		want := fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
		if got := string(id.Append([]byte("kept"))); got != "kept"+want || id.String() != want {
			t.Fatalf("got %s, want kept%s", got, want)
		}
	}
}
