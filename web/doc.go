// Package web is a page, in a browser, that shows what a Manager knows: its nodes, the leases of this process, any name,
// the names of a prefix, and the last events. It is read-only and live.
//
//	mux.Handle("/locks/", http.StripPrefix("/locks", web.Handler(m)))
//
// Open /locks/. The page needs no build, no file and nothing from another site. It has no login: every client that
// reaches it sees the names and labels of all locks, so put it where your metrics and pprof are, or behind the login
// of your program.
//
// # What it costs
//
// Nodes, leases and events come from memory. A name that is looked at costs each node one read a second, and a name
// with n permits n reads; a list costs what [quorumlock.Manager.List] does when someone asks for it, every 15 s while
// it is shown, and less often if the scan took more than 1.5 s: at most a tenth of the time. All viewers share these. A
// hidden tab asks for nothing.
//
// # What it keeps
//
// Handler begins to record events when it is called: the last 100, and the last 50 losses, which other events do not
// push out. It leaves out renewals. It starts one goroutine for that, which ends with [quorumlock.Manager.Close], as
// the open pages do. Streams outlive the WriteTimeout and ReadTimeout of an http.Server, and end at once when its
// Shutdown begins.
package web
