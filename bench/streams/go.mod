module github.com/ferula-io/ferula/bench/streams

go 1.26.0
