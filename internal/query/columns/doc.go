// Package columns is a PromQL engine that evaluates one series at a time.
//
// A query is parsed, queued, timed, logged and limited by Prometheus' engine; only the
// evaluation is replaced (query.go). The expression is compiled into a tree of nodes
// (compile.go). A node evaluates itself by passing rows to a sink: a row is the values of
// one series at all steps, with a bitmap of the steps that have one (row.go). The sink may
// change a row, and must not keep it. So a selection streams through the tree: the chunks
// of one series are decoded into one array of points (points.go, raw.go), an instant
// selector (selector.go) or a function of a window (window.go, rate.go, overtime.go) turns
// the points into a row, operators change the row (binary.go, unary.go), an aggregation
// (aggregate.go) folds it into its group, and the series is forgotten. At the root the rows
// become a matrix or a vector (result.go).
//
// The result is that of Prometheus' engine, bit by bit: floats are added in the same order
// and series come in the order in which Prometheus' engine sees them. So are annotations,
// statistics and limits: account.go counts the samples that Prometheus would hold.
//
// A large selection is computed by several goroutines (parallel.go, package ordered): they read
// batches of series in turn, and decode and compute them at the same time. Everything behind that
// (operators, aggregations, counting of samples) happens in the order of the series, on the
// goroutine of the query. The right operand of an operator between vectors may be evaluated by a
// worker while the query evaluates the left one (branch): with counts and annotations of its own,
// which are added after those of the left one.
//
// An aggregation that an expression has several times is evaluated once (sharedNode), and so are
// selectors and functions of range selectors that are operands of operators between vectors. Different
// aggregations of one expression get its series in turn, each row by all (fusedNode).
//
// # What is not known
//
// A node that the compiler does not know is evaluated by Prometheus' engine as a query over
// the same steps, and its series become rows (foreign.go). If the root is not known, or the
// data needs what no node here can do (errGiveUp), the whole query is.
//
// Native histograms are in the rows, too. A series that has some is read through Prometheus'
// iterators (histograms.go), and its windows are computed by Prometheus' functions.
//
// # Adding an operator
//
//  1. Write a type with an eval method in a file of its own. Pull rows from the operands by
//     calling their eval; emit rows to the sink. Errors of the operator itself are returned
//     after its operands have ended, since Prometheus evaluates operands first.
//  2. Count samples: an operator that is a rangeEval in Prometheus uses stepCounts.
//  3. Add a case to compiler.compile, with the conditions under which it is exact.
//  4. Add expressions to the table in differential_test.go.
//
// A function of a range vector needs no code if it is in windowFunctions: it is called with
// each window. A fast version may be added to fastWindows.
package columns
