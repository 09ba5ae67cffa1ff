package downstream

import "hash/crc32"

// digestBlockBytes is how many bytes share one CRC.
const digestBlockBytes = 64 << 10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digest is a running hash of what was handed out: 64 bits into which the CRC-32C
// of every block is folded. A difference within one block goes unnoticed in one of
// 2^32 cases, never if it is a run of up to 32 bits, and one in many blocks hardly
// ever. xxhash would make the former 2^64, but costs three times as much, which
// shows: every byte of every answer goes through here, and it is compared only when
// a connection broke. The zero value is the digest of nothing.
type digest struct {
	chain uint64
	crc   uint32
	fill  int // bytes in crc
}

func (d *digest) write(p []byte) {
	for len(p) > 0 {
		n := min(len(p), digestBlockBytes-d.fill)
		d.crc = crc32.Update(d.crc, castagnoli, p[:n])
		d.fill += n
		p = p[n:]
		if d.fill == digestBlockBytes {
			*d = digest{chain: d.sum()}
		}
	}
}

// sum tells apart digests of equally many bytes.
func (d *digest) sum() uint64 {
	x := (d.chain ^ uint64(d.crc)) * 0x9e3779b97f4a7c15 // odd, so that nothing is lost
	return x ^ x>>32
}
