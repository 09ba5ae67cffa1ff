package bucket

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/profiles"
)

// profileIndexFile is the object in profilesDir that lists complete profile blocks. A reader that
// starts requests neither the sizes nor the meta of a listed block. The object may be out of date
// or missing: which blocks exist is decided by listing the bucket.
const profileIndexFile = "bucket-index.json.gz"

// Limits of a decompressed index.
const (
	profileIndexMax   = 256 << 20 // bytes
	profileEntriesMax = blocksMax
	profileHeadMax    = 64 << 10 // bytes of Head; enough for thousands of parents
)

// ProfileEntry is a complete profile block in the index of the bucket.
type ProfileEntry struct {
	Tenant     string    `json:"tenant"`
	ID         ulid.ULID `json:"id"`
	IndexBytes int64     `json:"index_bytes"`
	RowsBytes  int64     `json:"rows_bytes"`
	Head       []byte    `json:"head"` // beginning of the block's index, with the meta
}

// WriteIndex replaces the index of the bucket. It leaves out entries that exceed a limit of readers.
func (p *ProfileStore) WriteIndex(ctx context.Context, entries []ProfileEntry) error {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if err := errors.Join(encodeProfileIndex(w, entries, profileIndexMax), w.Close()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	name := path.Join(profilesDir, profileIndexFile)
	if err := p.bucket.Upload(ctx, name, bytes.NewReader(b.Bytes())); err != nil {
		return fmt.Errorf("upload %s: %w", name, err)
	}
	return nil
}

// encodeProfileIndex writes the JSON of an index, of at most bytesMax bytes.
func encodeProfileIndex(to io.Writer, entries []ProfileEntry, bytesMax int) error {
	const begin, end = `{"version":1,"blocks":[`, "]}\n"
	if _, err := io.WriteString(to, begin); err != nil {
		return err
	}
	written, size := 0, len(begin)+len(end)
	for _, e := range entries {
		if len(e.Head) > profileHeadMax {
			continue
		}
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if written > 0 {
			text = append([]byte{','}, text...)
		}
		if size += len(text); size > bytesMax || written == profileEntriesMax {
			break
		}
		if _, err := to.Write(text); err != nil {
			return err
		}
		written++
	}
	_, err := io.WriteString(to, end)
	return err
}

func readProfileIndex(ctx context.Context, from objstore.BucketReader) (_ []ProfileEntry, err error) {
	name := path.Join(profilesDir, profileIndexFile)
	if counted, ok := from.(objstore.InstrumentedBucketReader); ok { // a bucket without an index is no failure
		from = counted.ReaderWithExpectedErrs(from.IsObjNotFoundErr)
	}
	body, err := from.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	r, err := gzip.NewReader(body)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, name, err)
	}
	entries, err := decodeProfileIndex(io.LimitReader(r, profileIndexMax))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, name, err)
	}
	return entries, nil
}

// decodeProfileIndex decodes one entry after the other, so that the limits hold before all entries are in memory: an
// empty entry has 3 bytes of JSON and takes about 100 bytes of memory.
func decodeProfileIndex(from io.Reader) (entries []ProfileEntry, err error) {
	d := json.NewDecoder(from)
	want := func(delim json.Delim) error {
		if token, err := d.Token(); err != nil || token != delim {
			return errors.Join(fmt.Errorf("%v is where %v should be", token, delim), err)
		}
		return nil
	}
	if err := want('{'); err != nil {
		return nil, err
	}
	version := 0
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		switch key {
		case "version":
			if err := d.Decode(&version); err != nil {
				return nil, err
			}
		case "blocks":
			if err := want('['); err != nil {
				return nil, err
			}
			for d.More() {
				var e ProfileEntry
				if err := d.Decode(&e); err != nil {
					return nil, err
				}
				if len(entries) == profileEntriesMax || len(e.Head) > profileHeadMax {
					return nil, fmt.Errorf("block %d exceeds a limit", len(entries)+1)
				}
				entries = append(entries, e)
			}
			if err := want(']'); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%v is unknown", key)
		}
	}
	if err := want('}'); err != nil {
		return nil, err
	}
	if version != 1 {
		return nil, fmt.Errorf("version %d is not known", version)
	}
	return entries, nil
}

// fromIndex returns the blocks of the bucket's index, by directory. If the index is missing or corrupt, it returns
// an empty map, and Blocks requests the sizes of all blocks. If the request for the index fails, it returns nil.
// Blocks then goes on without the index. If Blocks cannot list the directories either, its next call requests the
// index again. fromIndex does not compare the sizes in the index with the objects. A caller of Blocks that reads a
// block compares them, and calls Doubt if they differ.
func (r *ProfileReader) fromIndex(ctx context.Context) map[string]*knownProfile {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	known := map[string]*knownProfile{}
	entries, err := readProfileIndex(ctx, r.bucket)
	if isNotFound(r.bucket, err) {
		return known
	}
	if err != nil {
		r.indexErrors.Inc()
		r.opts.Logger.Warn("The index of the profile blocks in the bucket is not used; the size and the meta of each "+
			"block are requested", "err", err)
		if errors.Is(err, ErrCorrupt) {
			return known
		}
		return nil
	}
	refused := 0
	for _, e := range entries {
		name := ProfileBlock(profiles.TenantDir(e.Tenant), e.ID)
		if e.IndexBytes <= 0 || e.RowsBytes <= 0 || len(e.Head) == 0 {
			if refused++; refused == 1 {
				r.indexErrors.Inc()
				r.opts.Logger.Warn("An invalid entry in the index of the profile blocks in the bucket is not used; the size and "+
					"the meta of its block are requested", "block", name, "index_bytes", e.IndexBytes, "rows_bytes", e.RowsBytes)
			}
			continue
		}
		k := r.newKnown(name, e.IndexBytes, e.RowsBytes)
		k.head, k.confirmed = e.Head, true
		known[name] = k
	}
	return known
}
