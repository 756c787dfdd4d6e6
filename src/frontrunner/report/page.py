"""The report's HTML as a Jinja template; autoescaping is on, only our own CSS and SVG are safe."""

TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ name }} - frontrunner report</title>
<style>{{ css|safe }}</style>
</head>
<body>
{% macro measured(p, kind) %}
{% if p is none %}<span class="muted">not yet</span>
{% elif kind == "success" %}{{ p.success|percent }}
<small>{{ p.success_low|percent }} to {{ p.success_high|percent }}</small>
{% else %}{{ p.cost|usd }}<small>{{ p.cost_low|usd }} to {{ p.cost_high|usd }}</small>
{% endif %}
{% endmacro %}
<main>
<header>
<p class="brand">frontrunner <span>{{ name }}</span></p>
<h1>{{ headline }}</h1>
<dl class="facts">
{% for key, value in facts %}
<div><dt>{{ key }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
</header>

{% if alarms %}
<section class="alarms" aria-label="Alarms">
<h2>Alarms</h2>
<ul>
{% for alarm in alarms %}
<li><b>{{ alarm.kind }}</b> {{ alarm.message }}
<span class="muted">(step {{ alarm.step }})</span></li>
{% endfor %}
</ul>
</section>
{% endif %}

<section>
<h2>Frontier</h2>
<figure>
<div class="wide">{{ figure_wide|safe }}</div>
<div class="narrow">{{ figure_narrow|safe }}</div>
<figcaption>Held-out success against priced cost{{ " before and after training" if finished }}.
Bars: 95 % intervals, tasks resampled whole. Dotted: equal reward, with slope \u03bb through the
base point; above it is better. Dominated points are grey.</figcaption>
</figure>
</section>

<section>
<h2>Levels</h2>
<div class="scroll">
<table>
<thead><tr><th></th>
{% for level in levels %}
<th scope="col"><i class="dot l{{ loop.index0 % 6 }}"></i>{{ level.name }}</th>
{% endfor %}
</tr></thead>
<tbody>
<tr><th scope="row">\u03bb <small>per USD</small></th>
{% for level in levels %}
<td>{{ "-" if level.lambda is none else level.lambda|number }}</td>
{% endfor %}</tr>
{% for kind, title in (("success", "Success"), ("cost", "Cost")) %}
<tr class="group"><th scope="row">{{ title }} before</th>
{% for p in frontier.points.base %}<td>{{ measured(p, kind) }}</td>{% endfor %}</tr>
<tr><th scope="row">{{ title }} after</th>
{% for level in levels %}
<td>{{ measured(frontier.points.final[loop.index0] if finished else none, kind) }}</td>
{% endfor %}</tr>
{% endfor %}
<tr class="group"><th scope="row">\u0394 success <small>points</small></th>
{% for level in levels %}
<td>{% if level.delta_success %}{{ level.delta_success.mean|points }}
<small>{{ level.delta_success.low|points }} to {{ level.delta_success.high|points }}</small>
{% else %}<span class="muted">not yet</span>{% endif %}</td>
{% endfor %}</tr>
<tr><th scope="row">\u0394 cost <small>USD</small></th>
{% for level in levels %}
<td>{% if level.delta_cost_usd %}{{ level.delta_cost_usd.mean|usd(true) }}
<small>{{ level.delta_cost_usd.low|usd(true) }} to {{ level.delta_cost_usd.high|usd(true) }}</small>
{% else %}<span class="muted">not yet</span>{% endif %}</td>
{% endfor %}</tr>
<tr class="total"><th scope="row">\u0394J <small>points</small></th>
{% for level in levels %}
{% set d = level.delta_j %}
<td>{% if d %}
<b class="{{ 'good' if d.low > 0 else 'bad' if d.high < 0 else '' }}">{{ d.mean|points }}</b>
<small>{{ d.low|points }} to {{ d.high|points }}</small>
{% else %}<span class="muted">not yet</span>{% endif %}</td>
{% endfor %}</tr>
</tbody>
</table>
</div>
<p class="note">J = S \u2212 \u03bbC at fixed \u03bb, in points of success. Differences are
paired by task; ranges are 95 % intervals. Colour marks intervals that exclude 0.</p>
</section>

{% if fit %}
<section>
<h2>Where \u03bb comes from</h2>
<ul class="plain">
{% for sentence in fit.explanations %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
</section>
{% endif %}

{% if curves %}
<section>
<h2>Training</h2>
<p class="key">
{% for level in levels %}
<span><i class="dot l{{ loop.index0 % 6 }}"></i>{{ level.name }}</span>
{% endfor %}</p>
<div class="curves">
{% for title, svg in curves %}
<figure><figcaption>{{ title }}</figcaption>{{ svg|safe }}</figure>
{% endfor %}
</div>
</section>
{% endif %}

<section>
<h2>How rollouts ended</h2>
<div class="scroll">
<table>
<thead><tr><th></th>
{% for level in levels %}
<th scope="col"><i class="dot l{{ loop.index0 % 6 }}"></i>{{ level.name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for what, counts in endings %}
<tr><th scope="row">{{ what }}</th>
{% for before, after in counts %}
<td class="count">{{ before }}{% if after is not none %}
 <span class="muted">\u2192</span> {{ after }}{% endif %}</td>
{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
</div>
<p class="note">Held-out rollouts{{ ", before \u2192 after training" if finished }}.</p>
</section>

<section>
<h2>Rollouts</h2>
{% for title, rollouts in samples %}
<h3>{{ title }}</h3>
{% for r in rollouts %}
<details>
<summary><i class="dot l{{ r.index }}"></i><b>{{ r.effort }}</b>
<span class="{{ 'good' if r.solved else 'bad' }}">{{ r.ending }}</span>
<code>{{ r.task }}</code>
<span class="muted">{{ r.turns|length }} turns, {{ "{:,}".format(r.num_tokens) }} tokens
{%- if r.cost %}, {{ r.cost }}{% endif %}
{%- if r.reward %}, R {{ r.reward }}{% endif %}</span></summary>
<p class="note">Verdict: {{ r.reason }}.
{{ "Changed: " ~ r.files|join(", ") if r.files else "Changed nothing" }}.</p>
<ol>
{% for turn in r.turns %}
<li><p><b>{{ turn.action }}</b> <span class="muted">{{ turn.ledger }}</span></p>
<pre>{{ turn.text }}</pre>
{% if turn.observation %}<pre class="observation">{{ turn.observation }}</pre>{% endif %}</li>
{% endfor %}
</ol>
</details>
{% endfor %}
{% else %}
<p class="note">None stored.</p>
{% endfor %}
</section>

<section>
<details><summary>Configuration</summary><pre>{{ config }}</pre></details>
</section>
</main>
</body>
</html>
"""
