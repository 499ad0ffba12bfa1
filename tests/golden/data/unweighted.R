# The plain mean of sites, by R's metafor, of the BCG data and of a few sites.
# Rscript unweighted.R, in this folder; writes unweighted.json.
suppressPackageStartupMessages({library(metafor); library(jsonlite)})
told <- function(y, v) {
  m <- rma(y, v, method="HE", weighted=FALSE, test="t")
  list(y=as.numeric(y), v=as.numeric(v), estimate=as.numeric(m$beta), se=m$se, low=m$ci.lb, high=m$ci.ub,
    p=m$pval, tau2=m$tau2)
}
bcg <- escalc(measure="RR", ai=tpos, bi=tneg, ci=cpos, di=cneg, data=dat.bcg)
found <- list(
  meta=list(R=R.version.string, metafor=as.character(packageVersion("metafor"))),
  bcg=told(bcg$yi, bcg$vi),
  apart=told(c(.1, .35, -.2), c(.04, .09, .02)),
  alike=told(c(.5, .48, .53, .51), c(.04, .05, .06, .2)),
  two=told(c(.2, .9), c(.03, .05)))
write(toJSON(found, auto_unbox=TRUE, digits=NA, pretty=TRUE), "unweighted.json")
