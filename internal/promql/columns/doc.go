// Package columns is a PromQL engine that evaluates one series at a time.
//
// A query is parsed, queued, timed, logged and limited by Prometheus' engine; only the evaluation
// is replaced (query.go). The expression is compiled into a tree of nodes (compile.go). A node
// passes the series of its result to a sink, a function of its parent, as rows. A row has the
// values of one series at all steps, and a bitmap of the steps that have a value (row.go). The sink
// may change a row, and must not keep it, so that the memory is reused for the next series. For
// sum(rate(x[5m])) these steps follow each other for every series of x:
//
//  1. The chunks of the series are decoded into one array of points (points.go, raw.go).
//  2. The function of the range selector computes a row from the points (window.go, rate.go,
//     overtime.go). An instant selector (selector.go) would do the same.
//  3. Operators, if there are any, change the row (binary.go).
//  4. The aggregation adds the row to its group (aggregate.go).
//
// At the end the rows of the root become a matrix or a vector (result.go).
//
// Results equal the results of Prometheus' engine bit for bit: floats are added in the same order, and series arrive in
// the order in which Prometheus' engine gets them. Annotations, statistics and limits are the same, too: account.go counts
// the samples that Prometheus would hold in memory. Two limits exist only here: label_replace and label_join fail if a
// label value, or the labels of all series, would become too long (changedLabelMax, bytesOfSample).
//
// If windows are long or far apart, a selection asks for summaries of chunks instead of their samples (summaries.go): of
// chunks that each window covers whole or not at all, and of the parts of a chunk in which one window ends. rate,
// increase, delta, changes, resets, instant selectors, and min, max, count, last, first, present, absent, ts_of_first
// and ts_of_last_over_time use them, and of local blocks irate and idelta, which decode the last chunk of each window.
// Other functions decode all chunks in their windows: the order in which sum, avg and stddev add samples is part of the
// result, and quantiles and regressions need all samples. No function decodes a chunk that is in no window. count(x),
// group(x) and comparisons of x with a number use summaries at any step (filter.go). A backtest allows such a comparison
// to return one point for the middle of a run that is not read (Runs).
//
// Several goroutines compute a large selection (parallel.go, ordered.go). They read batches of series in turn,
// then decode and compute them concurrently. Operators, aggregations and the counting of samples follow in the order
// of the series, on the goroutine of the query. While the query evaluates the left operand of an operator between
// vectors, a worker may evaluate the right operand (type branch). A branch has counts and annotations of its own,
// which are added after the left operand's.
//
// An aggregation that occurs several times in a query is evaluated once (sharedNode). So are repeated selectors and
// repeated functions of range selectors, if they are operands of operators between vectors. If different
// aggregations of a query have the same operand, the operand is evaluated once, and each row is added to the groups
// of all these aggregations (fusedNode).
//
// # Unsupported expressions
//
// Prometheus' engine evaluates an operand that the compiler does not support, as a query over the same steps; the
// resulting series become rows (foreign.go). These rows may be in another order than in Prometheus' evaluation of
// the whole query. If the result of an operator depends on the order of the operand's series, the compiler does not
// support the operator either. Prometheus' engine evaluates the whole query if the root is not supported, or if the
// data need an operation that no node here implements (errGiveUp).
//
// Rows contain native histograms, too. A series with native histograms is read through Prometheus' iterators
// (histograms.go), and Prometheus' functions compute its windows.
//
// # Adding an operator
//
//  1. Write a type with an eval method in a file of its own. The method calls eval of its
//     operands, and passes rows to the sink. It returns errors of the operator itself only after
//     eval of all operands, because Prometheus evaluates operands first.
//  2. Count samples: an operator that is a rangeEval in Prometheus uses stepCounts.
//  3. Add a case to compiler.compile, with the conditions under which it is exact.
//  4. Add a case to planner.describe (explain.go).
//  5. Add expressions to the table in differential_test.go.
//
// A function of a range vector needs no code if it is in windowFunctions: it is called with
// each window. A fast version may be added to fastWindows. Anchored and smoothed range selectors use no fast version.
package columns
