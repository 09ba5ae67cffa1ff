//go:build !clouds

package scrape

const cloudsLinked = false
