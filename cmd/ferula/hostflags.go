package main

// hostFlags are the flags of every command that serves a page or accepts changes.
type hostFlags struct {
	Allowed []string `name:"web.allowed-host" sep:"none" placeholder:"NAME" help:"Host name of HTTP requests that are served (repeatable), besides IP addresses, localhost and, for serve, the host of --web.external-url; requests for others get 421. Without the flag, names are checked only if all listen addresses are loopback, against DNS rebinding. * allows all."`
}
