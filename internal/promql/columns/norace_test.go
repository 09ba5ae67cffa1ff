//go:build !race

package columns_test

const raceEnabled = false
