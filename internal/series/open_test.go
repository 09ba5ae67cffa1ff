package series

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/prometheus/storage"
)

var errChunks, errRaw = errors.New("chunk querier"), errors.New("raw querier")

// chunkStorage is a storage without the raw interface.
type chunkStorage struct{}

func (chunkStorage) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) { return nil, errChunks }

// rawStorage has both interfaces.
type rawStorage struct{ chunkStorage }

func (rawStorage) RawQuerier(_ context.Context, mint, maxt int64) (Querier, error) {
	if mint != 3 || maxt != 7 {
		return nil, errors.New("another range")
	}
	return nil, errRaw
}

func TestOpen_PrefersTheRawInterface(t *testing.T) {
	if _, err := Open(context.Background(), rawStorage{}, 3, 7); !errors.Is(err, errRaw) {
		t.Error(err)
	}
	if _, err := Open(context.Background(), chunkStorage{}, 3, 7); !errors.Is(err, errChunks) {
		t.Error(err)
	}
}
