package jsonenc_test

import (
	"fmt"
	"os"
	"unsafe"

	jsoniter "github.com/json-iterator/go"

	"github.com/ferula-io/ferula/promjson"
)

// columns are the values of a series.
type columns struct {
	ts []int64
	vs []float64
}

// The migration of promjson's README from jsoniter: promjson encodes and decodes one type within a value of jsoniter.
func Example_jsoniter() {
	jsoniter.RegisterTypeEncoderFunc("jsonenc_test.columns", func(p unsafe.Pointer, stream *jsoniter.Stream) {
		c := (*columns)(p)
		stream.WriteArrayStart()
		stream.SetBuffer(promjson.AppendColumns(stream.Buffer(), nil, c.ts, c.vs))
		stream.WriteArrayEnd()
	}, func(unsafe.Pointer) bool { return false })
	jsoniter.RegisterTypeDecoderFunc("jsonenc_test.columns", func(p unsafe.Pointer, iter *jsoniter.Iterator) {
		c := (*columns)(p)
		array := iter.SkipAndReturnBytes()
		if iter.Error != nil {
			return
		}
		if len(array) < 2 || array[0] != '[' {
			iter.ReportError("columns", "expected an array")
			return
		}
		var err error
		if c.ts, c.vs, err = promjson.DecodeColumns(c.ts[:0], c.vs[:0], array[1:len(array)-1]); err != nil {
			iter.ReportError("columns", err.Error())
		}
	})
	type series struct {
		Job    string
		Values columns
	}
	text, err := jsoniter.Marshal(series{"node", columns{[]int64{1000, 2500}, []float64{1, 0.5}}})
	_, _ = os.Stdout.Write(append(text, '\n'))
	var s series
	fmt.Println(err, jsoniter.Unmarshal(text, &s), s)
	// Output:
	// {"Job":"node","Values":[[1,"1"],[2.500,"0.5"]]}
	// <nil> <nil> {node {[1000 2500] [1 0.5]}}
}
