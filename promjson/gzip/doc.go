// Package gzip compresses responses of the Prometheus HTTP API to gzip (RFC 1952) at a fraction of
// the cost of a general compressor, at about the same size.
//
// A general compressor searches for repetitions. This is not necessary in the points of a matrix:
//
//	[[1700000000,"0.123456789012345"],[1700000015,"0.543210987654321"],...
//
// Everything except the digits of the values repeats at known offsets. The text from the closing quote
// of one value to the opening quote of the next value, such as "],[1700000015,", equals the text at the
// same step of the previous series. If the previous series has no such step, most of the text equals the
// text at the previous point. The [Writer] compares only the text at these two offsets. It encodes the
// digits with a Huffman code, two at a time. In other text, such as labels, it searches for repetitions,
// so that it compresses every input.
//
// Every gzip reader can read the output. A Writer has about 600 KiB of memory and can be reused after
// [Writer.Reset].
package gzip
