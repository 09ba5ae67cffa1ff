// Command plot draws the plots of docs/perf from bench/RESULTS.md again, as cmd/bench does after each accepted run. It is
// started in the bench directory: make plots.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/ferula-io/ferula/bench/plot"
)

func main() {
	root := flag.String("root", "..", "the repository's root")
	flag.Parse()
	if err := plot.Write(*root); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}
