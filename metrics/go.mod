module github.com/ferula-io/ferula/metrics

go 1.24
