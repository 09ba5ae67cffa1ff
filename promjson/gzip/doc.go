// Package gzip compresses responses of the Prometheus HTTP API to gzip (RFC 1952) at a fraction of
// the cost of a general compressor, at about the same size.
//
// A general compressor searches for repetitions. In the points of a matrix,
//
//	[[1700000000,"0.123456789012345"],[1700000015,"0.543210987654321"],...
//
// everything except the digits of the values repeats at known offsets. The text from the closing quote
// of one value to the opening quote of the next value is the same as at the same step of the previous
// series, or mostly the same as at the previous point. The [Writer] compares with these two offsets and
// does not search. The digits are Huffman coded, two at a time. Text outside of points, such as labels,
// is compressed by an ordinary search, so that every input is accepted.
//
// The output can be read by every gzip reader. A Writer can be used again after [Writer.Reset], and
// holds about 600 KiB.
package gzip
