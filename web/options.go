package web

// Option configures a Handler.
type Option interface{ apply(*page) }

type optionFunc func(*page)

func (f optionFunc) apply(p *page) { f(p) }

// TraceLink has the page link each holder whose request is traced to its trace, at your Jaeger, Tempo or other
// viewer. template is an http or https URL, in which {trace} stands for the trace id in hex and {span} for the span
// id, such as "https://jaeger.example/trace/{trace}". It returns a *quorumlock.InvalidError for a template
// without {trace}, of another scheme, without a host, with a placeholder in the host, with a user or password, and of
// more than 2,048 bytes.
func TraceLink(template string) (Option, error) {
	if err := checkLink(template); err != nil {
		return nil, err
	}
	return optionFunc(func(p *page) { p.link = template }), nil
}
