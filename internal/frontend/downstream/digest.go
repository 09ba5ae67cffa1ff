package downstream

import "hash/crc32"

// digestBlockBytes is how many bytes share one CRC.
const digestBlockBytes = 64 << 10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// digest is a running hash of the bytes returned: 64 bits into which the CRC-32C of every block is
// folded. A difference within one block goes unnoticed with a probability of 2^-32. A difference of
// up to 32 consecutive bits is always noticed, and a difference in many blocks practically always.
// xxhash would miss a difference with a probability of 2^-64, but it costs three times as much CPU:
// every byte of every response is hashed, and hashes are compared only after a broken connection.
// The zero value is the digest of no bytes.
type digest struct {
	chain uint64 // hash of the blocks before the current one
	crc   uint32 // CRC of the current block
	fill  int    // length of the current block in bytes
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

// sum returns the digest. Only digests of the same number of bytes may be compared.
func (d *digest) sum() uint64 {
	x := (d.chain ^ uint64(d.crc)) * 0x9e3779b97f4a7c15 // odd, so the product is invertible
	return x ^ x>>32
}
