// Package googlev1 is pprof's own profile message, generated. Responses to
// clients that request a profile as JSON use it. Stored and pushed profiles are decoded by profiles/pprof.
package googlev1
