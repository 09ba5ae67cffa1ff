module github.com/ferula-io/ferula/promjson

go 1.24
