// Package outside tests that a program outside of this repository can import the public
// modules: from a module proxy, by version, without go.work and without replace directives.
package outside
