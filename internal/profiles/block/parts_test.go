package block

import "errors"

var errStop = errors.New("stop")

// datasetSymbols are the symbols of one part.
type datasetSymbols struct {
	Dataset string
	Symbols *Symbols
}

// encodeParts encodes all parts.
func encodeParts(parts []datasetSymbols) (*PartsEncoder, error) {
	e := &PartsEncoder{}
	for _, p := range parts {
		if err := e.Add(p.Dataset, p.Symbols); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func mustEncode(parts []datasetSymbols) *PartsEncoder {
	e, err := encodeParts(parts)
	if err != nil {
		panic(err)
	}
	return e
}

// added adds symbols to a builder and returns for each node its number in the builder.
func added(b *Builder, s *Symbols) []uint32 { return b.AppendAdded([]uint32{0}, s) }
