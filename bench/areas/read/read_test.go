package read

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/ferula-io/ferula/bench/area"
)

func TestTotals_RowsWithoutAValueAreErrors(t *testing.T) {
	type row struct {
		Timestamp int64    `parquet:"timestamp"`
		Value     *float64 `parquet:"value,optional"`
	}
	v := 1.5
	path := filepath.Join(t.TempDir(), "x.parquet")
	var rows []row
	for i := range 10_000 {
		rows = append(rows, row{int64(i), &v})
	}
	if err := parquet.WriteFile(path, rows); err != nil {
		t.Fatal(err)
	}
	if n, sum, err := totals(path); n != 10_000 || sum != 15_000 || err != nil {
		t.Errorf("%d, %g, %v", n, sum, err)
	}
	rows[9_999].Value = nil
	if err := parquet.WriteFile(path, rows); err != nil {
		t.Fatal(err)
	}
	if _, _, err := totals(path); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("a row without a value: %v", err)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if _, _, err := totals(path); err == nil {
		t.Error("half a file is accepted")
	}
}
